//! Backends by name: `cpu:threads=2` becomes a backend. Users register their own.

use std::{collections::BTreeMap, sync::Arc};

use entensor_components::{Backend, BackendError};

/// A parsed backend text: `NAME[:KEY=VALUE,…]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSpec {
    /// The backend's name, in lower case.
    pub name: String,
    options: BTreeMap<String, String>,
}

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
    /// The text is not `NAME[:KEY=VALUE,…]`.
    #[error("`{spec}` is no backend; write NAME or NAME:KEY=VALUE,KEY=VALUE, for example cpu:threads=2")]
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
}

fn list_or_none(known: &[String]) -> String {
    if known.is_empty() { "none".into() } else { known.join(", ") }
}

impl BackendSpec {
    /// Reads a backend text. Names and keys ignore case.
    ///
    /// # Errors
    /// [`RegistryError::Syntax`].
    ///
    /// ```
    /// # use entensor::BackendSpec;
    /// let spec = BackendSpec::parse("CPU:threads=2")?;
    /// assert_eq!((spec.name.as_str(), spec.option("threads")), ("cpu", Some("2")));
    /// assert!(BackendSpec::parse("cpu:threads").is_err());
    /// # Ok::<(), entensor::RegistryError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, RegistryError> {
        let syntax = || RegistryError::Syntax { spec: text.into() };
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let word = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if !word(name.trim()) {
            return Err(syntax());
        }
        let mut options = BTreeMap::new();
        for option in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) = option.split_once('=').ok_or_else(syntax)?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_owned());
            if !word(&key) || value.is_empty() || options.insert(key, value).is_some() {
                return Err(syntax());
            }
        }
        Ok(Self { name: name.trim().to_ascii_lowercase(), options })
    }

    /// An option's value.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// An option as a number of threads: from 1 to 1024, so that a slip of the finger starts no million of them.
    ///
    /// # Errors
    /// [`RegistryError::Value`].
    pub fn threads(&self, key: &str) -> Result<Option<usize>, RegistryError> {
        let Some(value) = self.option(key) else { return Ok(None) };
        match value.parse() {
            Ok(number @ 1..=1024) => Ok(Some(number)),
            _ => Err(RegistryError::Value {
                backend: self.name.clone(),
                key: key.into(),
                value: value.into(),
                expected: "a whole number from 1 to 1024",
            }),
        }
    }

    fn check_keys(&self, known: &[&'static str]) -> Result<(), RegistryError> {
        match self.options.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => Err(RegistryError::UnknownKey {
                backend: self.name.clone(),
                key: key.clone(),
                known: known.iter().map(ToString::to_string).collect(),
            }),
            None => Ok(()),
        }
    }
}

/// Makes a backend from its options.
pub type BackendFactory = fn(&BackendSpec) -> Result<Arc<dyn Backend>, RegistryError>;

/// A backend that the registry can make.
#[derive(Clone, Debug)]
pub struct RegistryEntry {
    /// Its name, in lower case.
    pub name: &'static str,
    /// What it is, in a line.
    pub description: &'static str,
    /// The options it takes.
    pub options: &'static [&'static str],
    /// How it is made.
    pub make: BackendFactory,
}

/// The backends that can be made by name.
#[derive(Clone, Debug)]
pub struct Registry {
    entries: Vec<RegistryEntry>,
}

impl Default for Registry {
    fn default() -> Self {
        #[cfg_attr(not(any(feature = "cpu", feature = "gemm")), expect(unused_mut, reason = "features add backends"))]
        let mut entries = vec![
            RegistryEntry {
                name: "oracle",
                description: "naive f64 loops: slow, exact, for checking",
                options: &[],
                make: |spec| Ok(Arc::new(entensor_oracle::OracleBackend::new(&spec.name))),
            },
            RegistryEntry {
                name: "null",
                description: "accepts everything, computes nothing: for planning",
                options: &[],
                make: |spec| {
                    let config = entensor_null::NullConfig::host(&spec.name);
                    Ok(Arc::new(entensor_null::NullBackend::new(config)))
                },
            },
        ];
        #[cfg(feature = "cpu")]
        entries.insert(
            0,
            RegistryEntry {
                name: "cpu",
                description: "this machine's processor, on all its cores unless `threads` says otherwise",
                options: &["threads"],
                make: make_cpu,
            },
        );
        #[cfg(feature = "gemm")]
        entries.insert(
            entries.len() - 2,
            RegistryEntry {
                name: "gemm",
                description: "matrix products of 32 columns or more; above cpu, on the same memory, it takes prompts",
                options: &["threads"],
                make: make_gemm,
            },
        );
        Self { entries }
    }
}

#[cfg(feature = "gemm")]
fn make_gemm(spec: &BackendSpec) -> Result<Arc<dyn Backend>, RegistryError> {
    let config =
        entensor_gemm::GemmConfig { name: spec.name.clone(), threads: spec.threads("threads")?, ..Default::default() };
    let start = |source| RegistryError::Start { backend: spec.name.clone(), source };
    Ok(Arc::new(entensor_gemm::GemmBackend::new(config).map_err(start)?))
}

#[cfg(feature = "cpu")]
fn make_cpu(spec: &BackendSpec) -> Result<Arc<dyn Backend>, RegistryError> {
    let config =
        entensor_cpu::CpuConfig { name: spec.name.clone(), threads: spec.threads("threads")?, ..Default::default() };
    let start = |source| RegistryError::Start { backend: spec.name.clone(), source };
    Ok(Arc::new(entensor_cpu::CpuBackend::new(config).map_err(start)?))
}

impl Registry {
    /// Adds a backend, or replaces the one of its name.
    pub fn register(&mut self, entry: RegistryEntry) {
        self.entries.retain(|e| !e.name.eq_ignore_ascii_case(entry.name));
        self.entries.push(entry);
    }

    /// What can be made.
    #[must_use]
    pub fn entries(&self) -> &[RegistryEntry] {
        &self.entries
    }

    /// Makes a backend from its text.
    ///
    /// # Errors
    /// Unknown names and options list what exists.
    pub fn make(&self, text: &str) -> Result<Arc<dyn Backend>, RegistryError> {
        let spec = BackendSpec::parse(text)?;
        let entry = self.entries.iter().find(|e| e.name == spec.name).ok_or_else(|| RegistryError::UnknownName {
            name: spec.name.clone(),
            known: self.entries.iter().map(|e| e.name.to_owned()).collect(),
        })?;
        spec.check_keys(entry.options)?;
        (entry.make)(&spec)
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
        for bad in ["", ":", "cpu:", "cpu:=", "cpu:threads=", "cpu:threads=1,threads=2", "c p u"] {
            assert!(matches!(registry.make(bad), Err(RegistryError::Syntax { .. })), "{bad}");
        }
        #[cfg(feature = "cpu")]
        for bad in ["cpu:threads=0", "cpu:threads=-1", "cpu:threads=many", "cpu:threads=1000000"] {
            assert!(matches!(registry.make(bad), Err(RegistryError::Value { .. })), "{bad}");
        }
    }
}
