//! Which cases are asked for.

use crate::{Case, CaseParseError, cases};

/// The environment variable that chooses cases: a whole line, or a part of lines.
pub const CASE_VARIABLE: &str = "CONFORMANCE_CASE";

/// A choice of cases.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// The whole suite.
    All,
    /// One case, in the suite or not.
    One(Box<Case>),
    /// Cases of the suite whose line has this part.
    Part(String),
}

/// A part of a line that is in no line of the suite, and no whole line either.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("no case of the suite has `{part}` in its line, and it is no line of its own: {source}")]
pub struct NoSuchCase {
    /// What was asked for.
    pub part: String,
    /// Why it is no case.
    pub source: CaseParseError,
}

impl Selection {
    /// What [`CASE_VARIABLE`] asks for; everything, if it is not set.
    #[must_use]
    pub fn from_env() -> Self {
        std::env::var(CASE_VARIABLE).map_or(Self::All, |text| Self::new(&text))
    }

    /// A whole line is that case, anything else a part of lines; a bare name is always a part.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let is_name = !text.trim().contains(char::is_whitespace);
        match text.parse::<Case>() {
            Ok(case) if !is_name => Self::One(Box::new(case)),
            _ => Self::Part(text.into()),
        }
    }

    /// The cases.
    ///
    /// # Errors
    /// When there are none.
    pub fn cases(&self) -> Result<Vec<Case>, NoSuchCase> {
        match self {
            Self::All => Ok(cases()),
            Self::One(case) => Ok(vec![Case::clone(case)]),
            Self::Part(part) => {
                let mut chosen = cases();
                chosen.retain(|case| case.to_string().contains(part));
                match part.parse::<Case>() {
                    Err(source) if chosen.is_empty() => Err(NoSuchCase { part: part.clone(), source }),
                    Ok(case) if chosen.is_empty() => Ok(vec![case]),
                    _ => Ok(chosen),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_case_even_if_the_suite_lacks_it() {
        let line = "scale by=2.5 x=f16[13,3]:sliced";
        assert!(!cases().iter().any(|case| case.to_string() == line), "a case that the suite lacks");
        let chosen = Selection::new(line).cases().expect("it parses");
        assert_eq!(chosen.iter().map(ToString::to_string).collect::<Vec<_>>(), [line]);
    }

    #[test]
    fn a_part_chooses_lines_and_a_wrong_one_is_an_error() {
        let chosen = Selection::new("mul_mat weights=q8_0").cases().expect("the suite has some");
        assert!(chosen.len() > 10 && chosen.iter().all(|case| case.to_string().starts_with("mul_mat weights=q8_0")));
        let error = Selection::new("mul_mat weights=q9_0[64,5]:contiguous").cases().expect_err("no such dtype");
        assert!(matches!(error.source, CaseParseError::UnknownDType { .. }), "{error}");
        assert_eq!(Selection::new("scale"), Selection::Part("scale".into()), "an op's name is a part");
    }
}
