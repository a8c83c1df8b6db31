//! Which dtypes and layouts of which operands have cases, and which of these run where.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
};

use entensor_components::{Backend, DTYPES, DType, OPS, OpKind, OpRow, Support};

use crate::{Case, Layout, cases, suite::support};

/// An op with its operands' dtypes, and one operand in one layout.
type Combination = (OpKind, Vec<DType>, usize, Layout);

fn combinations(case: &Case) -> impl Iterator<Item = Combination> {
    let dtypes: Vec<DType> = case.operands.iter().map(|o| o.desc.dtype).collect();
    let kind = case.op.kind();
    case.operands.iter().enumerate().map(move |(index, o)| (kind, dtypes.clone(), index, o.layout))
}

/// A line for each combination that the backend supports and no case covers.
pub(super) fn missing(backend: &dyn Backend, suite: &[Case]) -> Vec<String> {
    let covered: HashSet<Combination> = suite.iter().flat_map(combinations).collect();
    let kinds: HashSet<OpKind> = suite.iter().map(|case| case.op.kind()).collect();
    let mut missing = Vec::new();
    for row in OPS.iter().filter(|row| row.computes()) {
        if !kinds.contains(&row.kind) {
            missing.push(format!("{}: no case at all", row.name));
            continue;
        }
        for operands in row.min_operands()..=row.operands.len() {
            for (dtypes, layouts) in cases::dtype_mixtures(row, operands) {
                for (index, &layout) in (0..operands).flat_map(|index| layouts.iter().map(move |l| (index, l))) {
                    if !covered.contains(&(row.kind, dtypes.clone(), index, layout))
                        && let Some(case) = supported(backend, row, &dtypes, index, layout)
                    {
                        missing.push(format!("{case}: supported, and no case has these dtypes with this layout"));
                    }
                }
            }
        }
        missing.extend(missing_widths(backend, row, suite));
    }
    missing
}

/// A case that the backend would run with these dtypes and one operand in this layout.
fn supported(backend: &dyn Backend, row: &OpRow, dtypes: &[DType], index: usize, layout: Layout) -> Option<Case> {
    let mut layouts = vec![Layout::Contiguous; dtypes.len()];
    layouts[index] = layout;
    let samples = row.test_samples();
    let samples = samples.iter().filter(|sample| sample.operands.len() == dtypes.len());
    // Widths of the samples, and whole blocks.
    let probes = samples.flat_map(|sample| [sample.clone(), cases::widened(sample, dtypes)]);
    let mut possible = probes.filter_map(|probe| cases::case(&probe, dtypes, &layouts));
    // A layout that is the packed one on this shape was tried as such.
    possible.find(|case| cases::shows(case, index, layout) && support(backend, case).is_yes())
}

/// A line for each width of rows that matters, that the op's rule allows and that no case has.
fn missing_widths(backend: &dyn Backend, row: &OpRow, suite: &[Case]) -> Vec<String> {
    let of_row: Vec<&Case> = suite.iter().filter(|case| case.op.kind() == row.kind).collect();
    let samples = row.test_samples();
    let mut missing = Vec::new();
    for (operand, of) in row.operands.iter().enumerate() {
        for (dtype, width) in of.dtypes.iter().flat_map(|d| cases::edge_widths(d).into_iter().map(move |w| (d, w))) {
            if !of_row.iter().any(|case| cases::has_width(case, operand, dtype, width))
                && let Some(case) = cases::case_of_width(row, &samples, operand, dtype, width)
                && support(backend, &case).is_yes()
            {
                missing.push(format!("{case}: supported, and no case has rows of {width} {dtype} elements there"));
            }
        }
    }
    missing
}

/// What one backend does with one operand of an op.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OperandCoverage {
    /// Dtypes with which some case runs.
    dtypes: BTreeSet<DType>,
    /// Dtypes with which no case runs.
    refused_dtypes: BTreeSet<DType>,
    /// Layouts with which some case runs.
    layouts: BTreeSet<&'static str>,
    /// Layouts with which some case is refused, and why.
    refused: BTreeSet<(String, String)>,
}

/// The suite's reach: for each op, how many cases there are, and what each backend runs of each operand.
#[derive(Debug)]
pub struct Coverage {
    backends: Vec<String>,
    ops: Vec<OpCoverage>,
}

#[derive(Debug)]
struct OpCoverage {
    kind: OpKind,
    cases: usize,
    /// Which backends run some case.
    ran: Vec<bool>,
    /// For each operand of the row, one entry a backend.
    operands: Vec<Vec<OperandCoverage>>,
}

/// What the backends run of the suite. Says nothing of time and counts nothing but cases, so that its text is stable.
#[must_use]
pub fn coverage(backends: &[&dyn Backend]) -> Coverage {
    let mut by_op: BTreeMap<OpKind, OpCoverage> = BTreeMap::new();
    for row in OPS.iter().filter(|row| row.computes()) {
        let none = || backends.iter().map(|_| OperandCoverage::default()).collect();
        let operands = row.operands.iter().map(|_| none()).collect();
        by_op.insert(row.kind, OpCoverage { kind: row.kind, cases: 0, ran: vec![false; backends.len()], operands });
    }
    for case in cases::cases() {
        let Some(op) = by_op.get_mut(&case.op.kind()) else { continue };
        op.cases += 1;
        for (index, backend) in backends.iter().enumerate() {
            let answer = support(*backend, &case);
            op.ran[index] |= answer.is_yes();
            for (operand, coverage) in case.operands.iter().zip(&mut op.operands) {
                let coverage = &mut coverage[index];
                match &answer {
                    Support::Yes => {
                        coverage.dtypes.insert(operand.desc.dtype);
                        coverage.layouts.insert(operand.layout.name());
                    }
                    Support::No(reason) => {
                        coverage.refused.insert((operand.layout.to_string(), reason.to_string()));
                    }
                }
            }
        }
    }
    for op in by_op.values_mut() {
        for (row, coverages) in op.kind.row().operands.iter().zip(&mut op.operands) {
            for coverage in coverages {
                coverage.refused_dtypes = row.dtypes.iter().filter(|d| !coverage.dtypes.contains(d)).collect();
            }
        }
    }
    Coverage { backends: backends.iter().map(|b| b.name().to_owned()).collect(), ops: by_op.into_values().collect() }
}

fn words<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cases: usize = self.ops.iter().map(|op| op.cases).sum();
        writeln!(f, "{} ops, {} dtypes, {cases} cases on {}", self.ops.len(), DTYPES.len(), words(&self.backends))?;
        for op in &self.ops {
            writeln!(f, "\n{}: {} cases", op.kind, op.cases)?;
            if op.operands.is_empty() {
                let ran = self.backends.iter().zip(&op.ran).filter(|(_, ran)| **ran).map(|(backend, _)| backend);
                writeln!(f, "  no operands on {}", words(ran))?;
            }
            for (row, coverages) in op.kind.row().operands.iter().zip(&op.operands) {
                // Backends that do the same share a line.
                let mut groups: Vec<(&OperandCoverage, Vec<&str>)> = Vec::new();
                for (coverage, backend) in coverages.iter().zip(&self.backends) {
                    match groups.iter_mut().find(|(other, _)| *other == coverage) {
                        Some((_, backends)) => backends.push(backend),
                        None => groups.push((coverage, vec![backend])),
                    }
                }
                for (coverage, backends) in groups {
                    let (dtypes, layouts) = (
                        words(&coverage.dtypes),
                        words(Layout::ALL.iter().filter(|l| coverage.layouts.contains(l.name()))),
                    );
                    writeln!(f, "  {} on {}: {dtypes}; {layouts}", row.name, words(backends))?;
                    if !coverage.refused_dtypes.is_empty() {
                        writeln!(f, "    refused dtypes: {}", words(&coverage.refused_dtypes))?;
                    }
                    for (layout, reason) in &coverage.refused {
                        writeln!(f, "    refused with {layout}: {reason}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use entensor_oracle::OracleBackend;

    use super::*;

    #[test]
    fn what_has_no_case_is_missed() {
        let oracle = OracleBackend::new("oracle");
        let missed = |drop: &dyn Fn(&Case) -> bool| {
            let mut suite = cases::cases();
            suite.retain(|case| !drop(case));
            missing(&oracle, &suite)
        };
        assert_eq!(missed(&|_| false), Vec::<String>::new());
        assert_eq!(missed(&|case| case.op.kind() == OpKind::Scale), ["scale: no case at all"]);
        // A dtype of one operand beside one of another, in any layout; and a layout of one of them.
        let q8_f16 = |case: &Case| {
            case.op.kind() == OpKind::MulMat
                && (case.operands[0].desc.dtype, case.operands[1].desc.dtype) == (DType::Q8_0, DType::F16)
        };
        let lines = missed(&q8_f16);
        assert!(lines.len() >= Layout::ALL.len() && lines.iter().all(|line| line.starts_with("mul_mat weights=q8_0[")));
        let lines = missed(&|case| q8_f16(case) && case.operands[1].layout == Layout::Sliced);
        let of_x = |line: &String| line.split_once(" x=f16[").is_some_and(|(_, x)| x.contains("]:sliced"));
        assert!(lines.iter().any(of_x), "{lines:?}");
        // Rows of one block, and empty ones.
        for (dtype, width) in [(DType::Q4_1, 32), (DType::F16, 0)] {
            let of_width = |case: &Case| {
                let table = case.operands.first().filter(|_| case.op.kind() == OpKind::GetRows);
                table.is_some_and(|table| table.desc.dtype == dtype && table.desc.shape.0[0] == width)
            };
            let lines = missed(&of_width);
            assert!(lines.iter().any(|line| line.contains(&format!("rows of {width} {dtype} elements"))), "{lines:?}");
        }
    }
}
