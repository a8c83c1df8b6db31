//! Deciding the dtype of every tensor: a pure function of the header.

use std::{fmt, str::FromStr};

use entensor_components::{DType, DTypeClass};

use super::error::{KeepRuleError, QuantizeError};
use crate::gguf::{GgufHeader, GgufTensor, excerpt};

/// What to convert, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizeConfig {
    /// The dtype of every matrix that no rule is about.
    pub dtype: DType,
    /// Rules for tensors by name. The first that fits counts.
    pub keep: Vec<KeepRule>,
}

/// A dtype for the tensors whose names fit a pattern: `PATTERN=DTYPE`, or `PATTERN=keep` for what they have.
///
/// In a pattern, `*` fits any text, also none, `?` fits one character, and every other character fits itself. A pattern with
/// one of these gives its dtype to matrices only; a vector has to be named.
///
/// ```
/// use entensor_models::quantize::KeepRule;
///
/// let rule: KeepRule = "blk.?.ffn_*=q8_0".parse()?;
/// assert!(rule.fits("blk.3.ffn_down.weight") && !rule.fits("blk.12.ffn_down.weight"));
/// # Ok::<(), entensor_models::quantize::KeepRuleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepRule {
    pattern: String,
    /// None for the dtype that the tensor has.
    dtype: Option<DType>,
}

impl KeepRule {
    /// Whether a tensor of this name is meant.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        fits(&self.pattern, name)
    }

    /// Whether vectors are meant too: `blk.*=q4_0` speaks of matrices, and a norm in blocks is nothing that a model can use.
    fn reaches_vectors(&self) -> bool {
        self.dtype.is_none() || !self.pattern.contains(['*', '?'])
    }

    /// The pattern.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }
}

impl FromStr for KeepRule {
    type Err = KeepRuleError;

    fn from_str(rule: &str) -> Result<Self, KeepRuleError> {
        // Names of dtypes have no `=`, patterns may.
        let Some((pattern, name)) = rule.rsplit_once('=') else {
            return Err(KeepRuleError::NoTarget { rule: excerpt(rule) });
        };
        if pattern.is_empty() {
            return Err(KeepRuleError::NoPattern { rule: excerpt(rule) });
        }
        let dtype = match name {
            "keep" => None,
            name => match DType::from_name(name).filter(|dtype| dtype.row().class != DTypeClass::Integer) {
                Some(dtype) => Some(dtype),
                None => return Err(KeepRuleError::UnknownDType { name: excerpt(name) }),
            },
        };
        Ok(Self { pattern: pattern.to_owned(), dtype })
    }
}

/// Whether `name` fits `pattern`. Takes the last `*` back on a mismatch, so the time is bounded by the product of the lengths.
fn fits(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // Behind the last star, and the name from where the star fits a character more.
    let mut retry = None;
    loop {
        let at = name.clone();
        match (pattern.next(), name.next()) {
            (Some('*'), _) => {
                retry = Some((pattern.clone(), at.clone()));
                name = at;
            }
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {}
            _ => {
                let Some((behind, mut rest)) = retry.take() else { return false };
                if rest.next().is_none() {
                    return false;
                }
                (pattern, name) = (behind.clone(), rest.clone());
                retry = Some((behind, rest));
            }
        }
    }
}

/// What becomes of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorChange {
    /// The name.
    pub name: String,
    /// Its elements.
    pub elements: u64,
    /// The dtype in the input.
    pub from: DType,
    /// The dtype in the output.
    pub to: DType,
    /// Set where `to` is not what was asked for.
    pub fallback: Option<Fallback>,
}

/// Why a tensor gets another dtype than the one that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// Vectors (norms, biases) are added and multiplied elementwise and take next to no room: they are f32.
    Vector,
    /// Integers are no weights and stay as they are.
    Integer,
    /// Rows are no whole number of blocks of the dtype that was asked for.
    PartialBlock {
        /// That dtype.
        asked: DType,
        /// Elements of a row.
        elements: u64,
    },
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vector => f.write_str("a vector"),
            Self::Integer => f.write_str("integers"),
            Self::PartialBlock { asked, elements } => {
                write!(f, "rows of {elements} are no whole {asked} blocks of {}", asked.block_elements())
            }
        }
    }
}

/// The dtypes of all tensors.
pub(super) fn changes(header: &GgufHeader, config: &QuantizeConfig) -> Result<Vec<TensorChange>, QuantizeError> {
    if config.dtype.row().class == DTypeClass::Integer {
        return Err(QuantizeError::IntegerTarget { dtype: config.dtype });
    }
    let unused = |rule: &&KeepRule| !header.tensors.iter().any(|tensor| rule.fits(&tensor.name));
    if let Some(rule) = config.keep.iter().find(unused) {
        return Err(QuantizeError::UnmatchedPattern { pattern: rule.pattern.clone() });
    }
    let change = |tensor: &GgufTensor| {
        let (to, fallback) = decide(tensor, config);
        TensorChange { name: tensor.name.clone(), elements: tensor.elements(), from: tensor.dtype, to, fallback }
    };
    Ok(header.tensors.iter().map(change).collect())
}

fn decide(tensor: &GgufTensor, config: &QuantizeConfig) -> (DType, Option<Fallback>) {
    let [elements, rest @ ..] = tensor.shape;
    let is_vector = rest == [1; 3];
    let is_meant = |rule: &&KeepRule| rule.fits(&tensor.name) && (!is_vector || rule.reaches_vectors());
    let rule = config.keep.iter().find(is_meant);
    if rule.is_some_and(|rule| rule.dtype.is_none()) {
        return (tensor.dtype, None);
    }
    if tensor.dtype.row().class == DTypeClass::Integer {
        return (tensor.dtype, Some(Fallback::Integer));
    }
    let asked = match rule.and_then(|rule| rule.dtype) {
        Some(dtype) => dtype,
        None if is_vector && config.dtype != DType::F32 => return (DType::F32, Some(Fallback::Vector)),
        None => config.dtype,
    };
    match fallback(asked, elements) {
        None => (asked, None),
        Some(to) => (to, Some(Fallback::PartialBlock { asked, elements })),
    }
}

/// What rows of so many elements get instead of `asked`; none if they are whole blocks.
///
/// The choice is the one that is usual for GGUF files: a type of 32-element blocks with as many bits or more, and f16 for rows
/// that are no whole number of those.
fn fallback(asked: DType, elements: u64) -> Option<DType> {
    let fits = |dtype: DType| elements.is_multiple_of(dtype.block_elements());
    if fits(asked) {
        return None;
    }
    let smaller = match asked.name() {
        "q2_K" | "q3_K" => "iq4_nl",
        "q4_K" => "q5_0",
        "q5_K" => "q5_1",
        "q6_K" => "q8_0",
        _ => "f16",
    };
    Some(DType::from_name(smaller).filter(|&dtype| fits(dtype)).unwrap_or(DType::F16))
}

/// The dtype that a file is said to be of: the one asked for where some matrix got it, or what stands for it; else the one
/// of most elements.
pub(super) fn main_dtype(changes: &[TensorChange], asked: DType) -> DType {
    let stands_for_it = |change: &&TensorChange| match change.fallback {
        None => change.to == asked,
        Some(Fallback::PartialBlock { asked: wanted, .. }) => wanted == asked,
        Some(Fallback::Vector | Fallback::Integer) => false,
    };
    if changes.iter().any(|change| stands_for_it(&change)) {
        return asked;
    }
    let elements = |dtype: DType| -> u64 {
        changes.iter().filter(|change| change.to == dtype).fold(0, |sum, change| sum.saturating_add(change.elements))
    };
    let weights = changes.iter().map(|change| change.to).filter(|dtype| dtype.row().class != DTypeClass::Integer);
    weights.max_by_key(|&dtype| elements(dtype)).unwrap_or(asked)
}

/// The value of `general.file_type` for files that are mostly of a dtype, as the GGUF specification numbers them.
pub(super) fn file_type(dtype: DType) -> u32 {
    match dtype.name() {
        "f32" => 0,
        "f16" => 1,
        "q4_0" => 2,
        "q4_1" => 3,
        "q8_0" => 7,
        "q5_0" => 8,
        "q5_1" => 9,
        "q2_K" => 10,
        "q3_K" => 11,
        "q4_K" => 14,
        "q5_K" => 16,
        "q6_K" => 18,
        "iq4_nl" => 25,
        "iq4_xs" => 30,
        "bf16" => 32,
        "mxfp4" => 38,
        // The specification's word for "not stated".
        _ => 1024,
    }
}

#[cfg(test)]
mod tests {
    use entensor_components::DTYPES;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_fit_as_globs_do() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "anything.weight", true),
            ("", "", true),
            ("", "a", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a?c", "aäc", true),
            ("blk.*.weight", "blk.0.attn_q.weight", true),
            ("blk.*.weight", "blk.0.attn_q.bias", false),
            ("*q*q*", "attn_q.q", true),
            ("*q*q*", "attn_q", false),
            ("*.weight", "a.weight.weight", true),
            ("**a**", "bab", true),
            ("*ab", "aab", true),
            ("*?", "", false),
            ("[ab]", "a", false),
            ("[ab]", "[ab]", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern:?} and {name:?}");
        }
        let (stars, name) = ("*a".repeat(30), "a".repeat(20_000));
        assert!(!fits(&(stars + "b"), &name), "no exponential time");
    }

    proptest! {
        #[test]
        fn patterns_made_from_names_fit_them(name in "[ab.]{0,8}", cuts in prop::collection::vec(any::<bool>(), 8)) {
            let single: String = name.chars().zip(&cuts).map(|(c, &cut)| if cut { '?' } else { c }).collect();
            prop_assert!(fits(&single, &name));
            let starred: String = name.chars().zip(&cuts).map(|(c, &cut)| if cut { "*".into() } else { c.to_string() }).collect();
            prop_assert!(fits(&starred, &name));
            let longer = format!("{single}c");
            prop_assert!(!fits(&longer, &name));
        }
    }

    #[test]
    fn rules_are_read_or_refused() {
        let rule: KeepRule = "a=b*=q8_0".parse().expect("the last `=` counts");
        assert_eq!((rule.pattern(), rule.dtype), ("a=b*", Some(DType::Q8_0)));
        assert_eq!("x=keep".parse::<KeepRule>().map(|rule| rule.dtype), Ok(None));
        assert!(matches!("x".parse::<KeepRule>(), Err(KeepRuleError::NoTarget { .. })));
        assert!(matches!("=f16".parse::<KeepRule>(), Err(KeepRuleError::NoPattern { .. })));
        for name in ["x=", "x=i32", "x=q9_9", "x=Q8_0"] {
            let error = name.parse::<KeepRule>().expect_err(name);
            assert!(
                matches!(error, KeepRuleError::UnknownDType { .. }) && error.to_string().contains("q4_1"),
                "{error}"
            );
        }
    }

    #[test]
    fn fallbacks_fit_and_lose_no_bits() {
        let bits = |dtype: DType| dtype.block_bytes() as f64 * 8.0 / dtype.block_elements() as f64;
        for row in DTYPES {
            for elements in [1, 31, 32, 64, 96, 576, 1024] {
                match fallback(row.dtype, elements) {
                    None => assert!(elements % row.block_elements == 0),
                    Some(to) => {
                        assert!(elements % row.block_elements != 0 && elements % to.block_elements() == 0);
                        assert!(bits(to) >= bits(row.dtype), "{} became {to}", row.name);
                    }
                }
            }
        }
        assert_eq!(fallback(DType::Q4_1, 48), Some(DType::F16));
    }

    #[test]
    fn every_weight_dtype_has_a_file_type() {
        let mut seen = Vec::new();
        for row in DTYPES.iter().filter(|row| row.class != DTypeClass::Integer) {
            let id = file_type(row.dtype);
            assert!(id != 1024 && !seen.contains(&id), "state the file type of {}", row.name);
            seen.push(id);
        }
    }
}
