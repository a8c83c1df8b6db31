//! Backends by name: `cpu:threads=2` becomes a backend. Users register their own.
//!
//! Nothing here blocks but starting backends, and nothing panics; a registry is plain data, so any thread may use it.

mod builtin;
mod spec;

use std::sync::Arc;

use entensor_components::{Backend, BackendError, BufferTypeInfo, HostMemory};

pub use spec::BackendSpec;

/// The name that stands for the best that there is.
pub const AUTO: &str = "auto";

/// Why a backend could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No backend of that name.
    #[error("there is no backend `{name}`; there are: {}", .known.join(", "))]
    UnknownName {
        /// What was asked for.
        name: String,
        /// What exists.
        known: Vec<String>,
    },
    /// The backend has no such option.
    #[error("backend `{backend}` has no option `{key}`; it has: {}", list_or_none(.known))]
    UnknownKey {
        /// The backend.
        backend: String,
        /// The option.
        key: String,
        /// What exists.
        known: Vec<String>,
    },
    /// The text is not `NAME[:OPTION,…]`.
    #[error("`{spec}` is no backend; write NAME or NAME:KEY=VALUE,WORD, for example cpu:threads=2")]
    Syntax {
        /// The text.
        spec: String,
    },
    /// An option's value does not fit.
    #[error("backend `{backend}`: {key}={value} does not fit; write {expected}")]
    Value {
        /// The backend.
        backend: String,
        /// The option.
        key: String,
        /// Its value.
        value: String,
        /// What fits.
        expected: &'static str,
    },
    /// Two backends of one name.
    #[error("two backends are named `{name}`; give one of them another name")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// The backend could not start.
    #[error("backend `{backend}` could not start: {source}")]
    Start {
        /// The backend.
        backend: String,
        /// Why.
        source: BackendError,
    },
    /// The backend cannot be configured so.
    #[error("backend `{backend}`: {source}")]
    Config {
        /// The backend.
        backend: String,
        /// Why.
        source: BackendError,
    },
    /// An option that needs a value has none.
    #[error("backend `{backend}`: `{key}` needs a value; write {key}=VALUE")]
    MissingValue {
        /// The backend.
        backend: String,
        /// The option.
        key: String,
    },
    /// The backend's memory cannot be had without the backend.
    #[error("backend `{backend}` gives no memory without being started; these do: {}", list_or_none(.known))]
    NoHostMemory {
        /// The backend.
        backend: String,
        /// Who gives some.
        known: Vec<String>,
    },
}

fn list_or_none(known: &[String]) -> String {
    if known.is_empty() { "none".into() } else { known.join(", ") }
}

/// Makes a backend from its options.
pub type BackendFactory = fn(&BackendSpec) -> Result<Arc<dyn Backend>, RegistryError>;

/// Allocates zeroed host memory as a backend would, without one.
pub type HostAllocator = fn(&BackendSpec, u64) -> Result<HostMemory, RegistryError>;

/// Something that a backend can be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The text that makes the backend.
    pub spec: String,
    /// What it is, for people.
    pub description: String,
    /// Its memory, if known.
    pub total_bytes: Option<u64>,
    /// What of that is free, if known.
    pub free_bytes: Option<u64>,
    /// The buffers that it makes, the default first.
    pub buffer_types: Vec<BufferTypeInfo>,
}

/// A backend that the registry can make.
#[derive(Clone, Debug)]
pub struct RegistryEntry {
    /// Its name, in lower case.
    pub name: &'static str,
    /// What it is, in a line.
    pub description: &'static str,
    /// The options that it takes with a value.
    pub options: &'static [&'static str],
    /// The options that are words by themselves.
    pub flags: &'static [&'static str],
    /// Whether `auto` takes it where it has a device, and in which order: the highest first. What has 0 is the host and comes last.
    pub auto: Option<u32>,
    /// What it can be made of. Opens nothing, and blocks no longer than a look at the system takes.
    pub devices: fn() -> Vec<DeviceInfo>,
    /// How memory is had without a backend, for backends on host memory.
    pub host_memory: Option<HostAllocator>,
    /// How it is made.
    pub make: BackendFactory,
}

impl RegistryEntry {
    /// A backend without options, that lists no devices and that `auto` does not take.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use entensor::{Engine, Registry, RegistryEntry};
    /// # use entensor::components::Backend;
    /// # fn my_backend(_: &str) -> Arc<dyn Backend> { Registry::default().make("oracle").unwrap() }
    ///
    /// let mut registry = Registry::default();
    /// registry.register(RegistryEntry {
    ///     options: &["gain"],
    ///     ..RegistryEntry::new("mine", "what it is, in a line", |spec| {
    ///         let gain = spec.option("gain").unwrap_or("1");
    ///         let fits = gain.parse::<f32>().is_ok();
    ///         if fits { Ok(my_backend(gain)) } else { Err(spec.unfit("gain", gain, "a number")) }
    ///     })
    /// });
    /// assert!(registry.make("mine:gain=2").is_ok());
    /// assert!(Engine::builder().registry(registry).backend("mine:gain=much").build().is_err());
    /// ```
    #[must_use]
    pub fn new(name: &'static str, description: &'static str, make: BackendFactory) -> Self {
        Self { name, description, options: &[], flags: &[], auto: None, devices: Vec::new, host_memory: None, make }
    }
}

/// The backends that can be made by name.
#[derive(Clone, Debug)]
pub struct Registry {
    entries: Vec<RegistryEntry>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { entries: builtin::entries() }
    }
}

impl Registry {
    /// Adds a backend, or replaces the one of its name. The name [`AUTO`] is taken.
    pub fn register(&mut self, entry: RegistryEntry) {
        self.entries.retain(|e| !e.name.eq_ignore_ascii_case(entry.name));
        self.entries.push(entry);
    }

    /// What can be made.
    #[must_use]
    pub fn entries(&self) -> &[RegistryEntry] {
        &self.entries
    }

    fn entry(&self, name: &str) -> Result<&RegistryEntry, RegistryError> {
        self.entries.iter().find(|e| e.name.eq_ignore_ascii_case(name)).ok_or_else(|| RegistryError::UnknownName {
            name: name.into(),
            known: [AUTO].into_iter().chain(self.entries.iter().map(|e| e.name)).map(str::to_owned).collect(),
        })
    }

    /// Whether a backend takes an option with a value; of `auto`, any of its backends.
    #[must_use]
    pub fn takes(&self, name: &str, option: &str) -> bool {
        let is_meant = |entry: &&RegistryEntry| {
            if name == AUTO { entry.auto.is_some() } else { entry.name.eq_ignore_ascii_case(name) }
        };
        self.entries.iter().filter(is_meant).any(|entry| entry.options.contains(&option))
    }

    /// Everything that backends can be made of, with the name of the backend. Opens nothing.
    #[must_use]
    pub fn devices(&self) -> Vec<(&'static str, DeviceInfo)> {
        self.entries.iter().flat_map(|entry| (entry.devices)().into_iter().map(|device| (entry.name, device))).collect()
    }

    /// What a text stands for: itself, but for `auto`, which stands for the best backends that there are, highest first and the host last.
    /// Its options are handed to those of them that take them: `auto:threads=2`.
    ///
    /// # Errors
    /// No text of a backend; an option of `auto` that nobody takes.
    ///
    /// ```
    /// # use entensor::Registry;
    /// assert_eq!(Registry::default().expand("auto:threads=2")?, ["cpu:threads=2"]);
    /// assert_eq!(Registry::default().expand("oracle")?, ["oracle"]);
    /// # Ok::<(), entensor::RegistryError>(())
    /// ```
    pub fn expand(&self, text: &str) -> Result<Vec<String>, RegistryError> {
        let spec = BackendSpec::parse(text)?;
        if spec.name != AUTO {
            return Ok(vec![text.to_owned()]);
        }
        let mut best: Vec<&RegistryEntry> =
            self.entries.iter().filter(|entry| entry.auto.is_some() && !(entry.devices)().is_empty()).collect();
        best.sort_by_key(|entry| std::cmp::Reverse(entry.auto));
        let all = |of: fn(&RegistryEntry) -> &'static [&'static str]| {
            best.iter().flat_map(|entry| of(entry)).copied().collect::<Vec<_>>()
        };
        spec.check(&all(|entry| entry.options), &all(|entry| entry.flags))?;
        if best.is_empty() {
            return self.entry(AUTO).map(|entry| vec![entry.name.to_owned()]);
        }
        Ok(best.iter().map(|entry| spec.handed_to(entry.name, entry.options, entry.flags)).collect())
    }

    /// Makes a backend from its text; of `auto`, the best.
    ///
    /// # Errors
    /// Unknown names and options list what exists.
    pub fn make(&self, text: &str) -> Result<Arc<dyn Backend>, RegistryError> {
        let (spec, entry) = self.find(text)?;
        (entry.make)(&spec)
    }

    /// Allocates zeroed host memory as the backend of this text would, without making one: memory that is filled before there is an engine, and
    /// imported with [`HostMemory::freeze`] and [`Engine::import_buffer`](crate::Engine::import_buffer). May block.
    ///
    /// # Errors
    /// [`RegistryError::NoHostMemory`] lists which backends give some; unknown names and options; out of memory.
    ///
    /// ```
    /// # use entensor::{DType, Engine, Registry};
    /// let memory = Registry::default().allocate("cpu", 16)?;
    /// memory.write()?[..4].copy_from_slice(&1.5_f32.to_le_bytes());
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let buffer = engine.import_buffer("weights", memory.freeze())?;
    /// let weights = engine.tensor_in("w", DType::F32, &[4], buffer, 0)?;
    /// let mut values = [0.0_f32; 4];
    /// engine.read_tensor(&weights, &mut values)?;
    /// assert_eq!(values, [1.5, 0.0, 0.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate(&self, text: &str, size_bytes: u64) -> Result<HostMemory, RegistryError> {
        let (spec, entry) = self.find(text)?;
        let allocate = entry.host_memory.ok_or_else(|| RegistryError::NoHostMemory {
            backend: entry.name.into(),
            known: self.entries.iter().filter(|e| e.host_memory.is_some()).map(|e| e.name.into()).collect(),
        })?;
        allocate(&spec, size_bytes)
    }

    fn find(&self, text: &str) -> Result<(BackendSpec, &RegistryEntry), RegistryError> {
        let best = self.expand(text)?.into_iter().next();
        let spec = BackendSpec::parse(best.as_deref().unwrap_or(text))?;
        let entry = self.entry(&spec.name)?;
        spec.check(entry.options, entry.flags)?;
        Ok((spec, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_and_options_list_what_exists() {
        let registry = Registry::default();
        let Err(error) = registry.make("gpu9") else { panic!("there is no gpu9") };
        assert!(error.to_string().contains("oracle, null"), "{error}");
        let Err(error) = registry.make("oracle:speed=9") else { panic!("the oracle has no options") };
        assert_eq!(error.to_string(), "backend `oracle` has no option `speed`; it has: none");
        for bad in
            ["", ":", "cpu:", "cpu:=", "cpu:threads=", "cpu:threads=1,threads=2", "c p u", "cpu:hbm,hbm", "cpu:a,a=1"]
        {
            assert!(matches!(registry.make(bad), Err(RegistryError::Syntax { .. })), "{bad}");
        }
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn options_have_values_and_words_have_none() {
        let registry = Registry::default();
        for bad in ["cpu:threads=0", "cpu:threads=-1", "cpu:threads=many", "cpu:threads=1000000", "cpu:hbm=1"] {
            assert!(matches!(registry.make(bad), Err(RegistryError::Value { .. })), "{bad}");
        }
        let text = |spec| registry.make(spec).map(|_| ()).expect_err("not to be made").to_string();
        assert_eq!(text("cpu:threads"), "backend `cpu`: `threads` needs a value; write threads=VALUE");
        assert_eq!(text("cpu:fast"), "backend `cpu` has no option `fast`; it has: threads, simd, hbm");
        assert_eq!(text("auto:fast"), "backend `auto` has no option `fast`; it has: threads, simd, hbm");
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn instructions_are_chosen_by_name() {
        use entensor_components::Sameness;

        let registry = Registry::default();
        let sameness = |spec| registry.make(spec).map(|backend| backend.sameness());
        for spec in
            ["cpu:threads=1", "cpu:simd=detect,threads=1", "cpu:simd=avx2,threads=1", "cpu:simd=portable,threads=1"]
        {
            assert_eq!(sameness(spec), Ok(Sameness::Machine), "{spec}");
        }
        for spec in ["cpu:simd=strict,threads=2", "auto:simd=strict,threads=1"] {
            assert_eq!(sameness(spec), Ok(Sameness::Strict), "{spec}");
        }
        let error = sameness("cpu:simd=sse9").expect_err("there is no such level");
        assert!(matches!(error, RegistryError::Value { .. }));
        let text = "backend `cpu`: simd=sse9 does not fit; write detect, avx2, portable or strict";
        assert_eq!(error.to_string(), text);
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn auto_is_whatever_is_best() {
        let mut registry = Registry::default();
        assert_eq!(registry.expand("AUTO").as_deref(), Ok(&["cpu".to_owned()][..]));
        let gpu = RegistryEntry {
            options: &["adapter"],
            auto: Some(5),
            ..RegistryEntry::new("gpu", "one that is not there", |_| unreachable!("nobody makes it"))
        };
        registry.register(gpu.clone());
        assert_eq!(registry.expand("auto").as_deref(), Ok(&["cpu".to_owned()][..]), "no device, no backend");
        registry.register(RegistryEntry {
            devices: || {
                let (spec, description) = ("gpu".into(), "a device".into());
                vec![DeviceInfo { spec, description, total_bytes: None, free_bytes: None, buffer_types: Vec::new() }]
            },
            ..gpu
        });
        let expanded = registry.expand("auto:threads=3,adapter=1");
        assert_eq!(expanded, Ok(vec!["gpu:adapter=1".into(), "cpu:threads=3".into()]));
        let names: Vec<&str> = registry.devices().iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&"gpu") && names.contains(&"cpu"), "{names:?}");
        let none = Registry { entries: Vec::new() };
        assert!(matches!(none.expand("auto"), Err(RegistryError::UnknownName { .. })));
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn memory_is_had_without_a_backend() {
        let registry = Registry::default();
        assert_eq!(registry.allocate("cpu", 0).expect("nothing").size_bytes(), 0);
        let memory = registry.allocate("auto", 100).expect("small");
        memory.write().expect("writable")[99] = 7;
        assert_eq!((*memory.freeze()).as_ref()[99], 7);
        let error = registry.allocate("oracle", 8).map(|_| ()).expect_err("not without a backend");
        assert_eq!(error.to_string(), "backend `oracle` gives no memory without being started; these do: cpu");
        assert!(matches!(registry.allocate("cpu", u64::MAX), Err(RegistryError::Start { .. })));
        assert!(matches!(registry.allocate("cpu:slow", 8), Err(RegistryError::UnknownKey { .. })));
    }
}
