//! Texts that name a backend with its options.

use std::collections::{BTreeMap, BTreeSet};

use super::RegistryError;

/// A parsed backend text: `NAME[:OPTION,…]`, where an option is `KEY=VALUE` or a word by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSpec {
    /// The backend's name, in lower case.
    pub name: String,
    options: BTreeMap<String, String>,
    flags: BTreeSet<String>,
}

impl BackendSpec {
    /// Reads a backend text. Names, keys and words ignore case.
    ///
    /// # Errors
    /// [`RegistryError::Syntax`].
    ///
    /// ```
    /// # use entensor::BackendSpec;
    /// let spec = BackendSpec::parse("CPU:threads=2,hbm")?;
    /// assert_eq!((spec.name.as_str(), spec.option("threads"), spec.flag("hbm")), ("cpu", Some("2"), true));
    /// assert!(BackendSpec::parse("cpu:threads=").is_err());
    /// # Ok::<(), entensor::RegistryError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, RegistryError> {
        let syntax = || RegistryError::Syntax { spec: text.into() };
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let word = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if !word(name.trim()) {
            return Err(syntax());
        }
        let mut spec =
            Self { name: name.trim().to_ascii_lowercase(), options: BTreeMap::new(), flags: BTreeSet::new() };
        for option in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) = option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value.trim())));
            let key = key.trim().to_ascii_lowercase();
            if !word(&key) || value == Some("") || spec.options.contains_key(&key) || spec.flags.contains(&key) {
                return Err(syntax());
            }
            match value {
                Some(value) => drop(spec.options.insert(key, value.to_owned())),
                None => drop(spec.flags.insert(key)),
            }
        }
        Ok(spec)
    }

    /// An option's value.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// Whether a word stands by itself.
    #[must_use]
    pub fn flag(&self, word: &str) -> bool {
        self.flags.contains(word)
    }

    /// An option as a number of threads: from 1 to 1024, so that a slip of the finger starts no million of them.
    ///
    /// # Errors
    /// [`RegistryError::Value`].
    pub fn threads(&self, key: &str) -> Result<Option<usize>, RegistryError> {
        let Some(value) = self.option(key) else { return Ok(None) };
        match value.parse() {
            Ok(number @ 1..=1024) => Ok(Some(number)),
            _ => Err(self.unfit(key, value, "a whole number from 1 to 1024")),
        }
    }

    /// An option whose value does not fit, for backends that read their own.
    #[must_use]
    pub fn unfit(&self, key: &str, value: &str, expected: &'static str) -> RegistryError {
        RegistryError::Value { backend: self.name.clone(), key: key.into(), value: value.into(), expected }
    }

    /// Checks that everything that is said is known, in its form.
    pub(super) fn check(&self, options: &[&'static str], flags: &[&'static str]) -> Result<(), RegistryError> {
        let unknown = |key: &String| RegistryError::UnknownKey {
            backend: self.name.clone(),
            key: key.clone(),
            known: options.iter().chain(flags).map(ToString::to_string).collect(),
        };
        for (key, value) in &self.options {
            if flags.contains(&key.as_str()) {
                return Err(self.unfit(key, value, "the word by itself"));
            }
            if !options.contains(&key.as_str()) {
                return Err(unknown(key));
            }
        }
        for word in &self.flags {
            if options.contains(&word.as_str()) {
                return Err(RegistryError::MissingValue { backend: self.name.clone(), key: word.clone() });
            }
            if !flags.contains(&word.as_str()) {
                return Err(unknown(word));
            }
        }
        Ok(())
    }

    /// The text of a backend with what it takes of these options.
    pub(super) fn handed_to(&self, name: &str, options: &[&str], flags: &[&str]) -> String {
        let options = self.options.iter().filter(|(key, _)| options.contains(&key.as_str()));
        let flags = self.flags.iter().filter(|word| flags.contains(&word.as_str()));
        let words: Vec<String> = options.map(|(key, value)| format!("{key}={value}")).chain(flags.cloned()).collect();
        if words.is_empty() { name.to_owned() } else { format!("{name}:{}", words.join(",")) }
    }
}
