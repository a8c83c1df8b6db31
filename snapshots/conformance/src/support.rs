//! What a backend says it runs: op by op, dtypes by dtypes, layout by layout.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use entensor_components::{Backend, DType, OpKind, Support};

use crate::{Case, Layout, suite::support};

/// A backend's answers, one row for each op with each mixture of dtypes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupportTable {
    /// In the order of the op table.
    pub rows: Vec<SupportRow>,
}

/// An op on operands of some dtypes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupportRow {
    /// The op's name.
    pub op: &'static str,
    /// The operands' dtypes.
    pub dtypes: Vec<DType>,
    /// For each layout that some case has for some operand: why cases are refused; none, if all run.
    pub layouts: BTreeMap<&'static str, BTreeSet<String>>,
}

impl SupportTable {
    /// Asks a backend about cases.
    #[must_use]
    pub fn new(backend: &dyn Backend, cases: &[Case]) -> Self {
        let mut rows: BTreeMap<(OpKind, Vec<DType>), SupportRow> = BTreeMap::new();
        for case in cases {
            let dtypes: Vec<DType> = case.operands.iter().map(|o| o.desc.dtype).collect();
            let empty = || SupportRow { op: case.op.row().name, dtypes: dtypes.clone(), ..SupportRow::default() };
            let row = rows.entry((case.op.kind(), dtypes.clone())).or_insert_with(empty);
            let answer = support(backend, case);
            // Where one operand is laid out in its own way and the others are packed, the answer is about that one.
            let packed = case.operands.iter().all(|o| o.layout == Layout::Contiguous);
            for operand in case.operands.iter().filter(|o| packed || o.layout != Layout::Contiguous) {
                let reasons = row.layouts.entry(operand.layout.name()).or_default();
                if let Support::No(reason) = &answer {
                    reasons.insert(reason.to_string());
                }
            }
            if case.operands.is_empty() {
                let reasons = row.layouts.entry(Layout::Contiguous.name()).or_default();
                reasons.extend(match answer {
                    Support::Yes => None,
                    Support::No(reason) => Some(reason.into_owned()),
                });
            }
        }
        Self { rows: rows.into_values().collect() }
    }
}

/// One line a row: `mul_mat q4_1 f32: contiguous yes, permuted no (rows that are not packed)`.
impl fmt::Display for SupportTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            f.write_str(row.op)?;
            for dtype in &row.dtypes {
                write!(f, " {dtype}")?;
            }
            let answered = Layout::ALL.iter().filter_map(|layout| row.layouts.get_key_value(layout.name()));
            for (i, (layout, reasons)) in answered.enumerate() {
                write!(f, "{} {layout} ", if i == 0 { ":" } else { "," })?;
                if reasons.is_empty() {
                    f.write_str("yes")?;
                } else {
                    let reasons: Vec<&str> = reasons.iter().map(String::as_str).collect();
                    write!(f, "no ({})", reasons.join("; "))?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
