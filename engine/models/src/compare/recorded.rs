//! Logits that were recorded: what `entensor logits --json` prints, and collections of it.

use serde::Deserialize;

use super::CompareError;

/// Recorded logits of one text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RecordedCase {
    /// The tokens of the text.
    pub prompt_ids: Vec<u32>,
    /// What was expected after each of them.
    pub positions: Vec<RecordedPosition>,
}

/// Recorded logits of one position.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RecordedPosition {
    /// Some tokens and their logits.
    pub top: Vec<(u32, f64)>,
    /// ln Σ exp of all logits, also of those that are not recorded.
    pub logsumexp: f64,
}

/// Either form of a file.
#[derive(Deserialize)]
struct Document {
    cases: Option<Vec<RecordedCase>>,
    prompt_ids: Option<Vec<u32>>,
    positions: Option<Vec<RecordedPosition>>,
}

impl RecordedCase {
    /// Reads one case, or a list of them under the key `cases`. Other keys are not looked at.
    ///
    /// # Errors
    /// [`CompareError::Json`], [`CompareError::NothingRecorded`] or [`CompareError::Recorded`].
    pub fn from_json(text: &str) -> Result<Vec<Self>, CompareError> {
        let Document { cases, prompt_ids, positions } = serde_json::from_str(text)?;
        let cases = match (cases, prompt_ids, positions) {
            (Some(cases), ..) => cases,
            (None, Some(prompt_ids), Some(positions)) => vec![Self { prompt_ids, positions }],
            (None, ..) => return Err(CompareError::NothingRecorded),
        };
        if cases.iter().all(|case| case.prompt_ids.is_empty()) {
            return Err(CompareError::NothingRecorded);
        }
        for (at, case) in cases.iter().enumerate() {
            case.check(at)?;
        }
        Ok(cases)
    }

    fn check(&self, case: usize) -> Result<(), CompareError> {
        let fail = |position, rule| Err(CompareError::Recorded { case, position, rule });
        if self.positions.len() != self.prompt_ids.len() {
            return fail(self.positions.len(), "there must be a position for each token");
        }
        for (at, position) in self.positions.iter().enumerate() {
            if position.top.is_empty() {
                return fail(at, "there must be a logit");
            }
            if !position.logsumexp.is_finite() || position.top.iter().any(|(_, logit)| !logit.is_finite()) {
                return fail(at, "logits and their sum must be finite");
            }
            // Records are rounded to a few digits.
            let total: f64 = position.top.iter().map(|(_, logit)| (logit - position.logsumexp).exp()).sum();
            if total > 1.01 {
                return fail(at, "probabilities must not sum up to more than 1");
            }
            let mut tokens: Vec<u32> = position.top.iter().map(|&(token, _)| token).collect();
            tokens.sort_unstable();
            if tokens.windows(2).any(|pair| pair[0] == pair[1]) {
                return fail(at, "no token must occur twice");
            }
        }
        Ok(())
    }

    /// Checks that all tokens are below the vocabulary's size.
    pub(super) fn check_ids(&self, case: usize, vocabulary: u64) -> Result<(), CompareError> {
        let known = |id: u32| u64::from(id) < vocabulary;
        for (position, (&id, recorded)) in self.prompt_ids.iter().zip(&self.positions).enumerate() {
            if !known(id) || recorded.top.iter().any(|&(token, _)| !known(token)) {
                return Err(CompareError::Recorded { case, position, rule: "ids must be in the model's vocabulary" });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let case = r#"{"prompt_ids":[1,2],"positions":[{"top":[[5,1.5],[0,1]],"logsumexp":3},{"top":[[7,0]],"logsumexp":0.5}]}"#;
        let one = RecordedCase::from_json(case).expect("valid");
        assert_eq!(one[0].positions[0].top, [(5, 1.5), (0, 1.0)]);
        let two = RecordedCase::from_json(&format!(r#"{{"model":"x","cases":[{case},{case}]}}"#)).expect("valid");
        assert_eq!(two, [one[0].clone(), one[0].clone()]);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let position = |text: &str| RecordedCase::from_json(&format!(r#"{{"prompt_ids":[1],"positions":[{text}]}}"#));
        assert!(position(r#"{"top":[[5,1.5]],"logsumexp":3}"#).is_ok());
        for bad in [
            r#"{"top":[],"logsumexp":3}"#,
            r#"{"top":[[5,1.5],[5,1]],"logsumexp":3}"#,
            r#"{"top":[[5,4.5]],"logsumexp":3}"#,
            r#"{"top":[[5,1.5]],"logsumexp":3},{"top":[[5,1.5]],"logsumexp":3}"#,
        ] {
            assert!(matches!(position(bad), Err(CompareError::Recorded { .. })), "{bad}");
        }
        for bad in
            [r#"{"top":[[5,1.5]]}"#, r#"{"top":[[-5,1.5]],"logsumexp":3}"#, r#"{"top":[[5,1e999]],"logsumexp":3}"#, "["]
        {
            assert!(matches!(position(bad), Err(CompareError::Json(_))), "{bad}");
        }
        for nothing in ["{}", r#"{"cases":[]}"#, r#"{"prompt_ids":[],"positions":[]}"#, r#"{"prompt_ids":[1]}"#] {
            assert!(matches!(RecordedCase::from_json(nothing), Err(CompareError::NothingRecorded)), "{nothing}");
        }
        let case = &position(r#"{"top":[[5,1.5]],"logsumexp":3}"#).expect("valid")[0];
        assert!(case.check_ids(0, 6).is_ok() && case.check_ids(0, 5).is_err() && case.check_ids(0, 1).is_err());
    }
}
