//! Whether every combination that a backend supports has a case.

use std::collections::HashSet;

use entensor_components::{Backend, DType, OPS, OpKind, Sample, SampleOperand, Shape};

use crate::{Case, Layout, cases, support};

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
    let mut missing = Vec::new();
    let mut reported = HashSet::new();
    for row in OPS.iter().filter(|row| row.computes()) {
        for sample in row.test_samples().iter().flat_map(probes) {
            let operands = sample.operands.len();
            for dtypes in cases::dtype_combinations(row, operands) {
                for (index, layout) in (0..operands).flat_map(|index| Layout::ALL.map(|layout| (index, layout))) {
                    let mut layouts = vec![Layout::Contiguous; operands];
                    layouts[index] = layout;
                    let Some(case) = cases::case(&sample, &dtypes, &layouts) else { continue };
                    let combination = (row.kind, dtypes.clone(), index, layout);
                    if !covered.contains(&combination)
                        && support(backend, &case).is_yes()
                        && reported.insert(combination)
                    {
                        missing.push(format!("{case}: supported, and no case has these dtypes with this layout"));
                    }
                }
            }
        }
    }
    missing
}

/// A sample, and the same with rows of whole blocks, so that a table row whose samples fit no block dtype is found out.
fn probes(sample: &Sample) -> Vec<Sample> {
    let width = sample.operands.first().map_or(0, |o| o.shape.0[0]);
    let widened = |operand: &SampleOperand| {
        let [d0, d1, d2, d3] = operand.shape.0;
        let d0 = if d0 == width { d0 * 32 } else { d0 };
        SampleOperand { shape: Shape([d0, d1, d2, d3]) }
    };
    let operands = sample.operands.iter().map(widened).collect();
    vec![sample.clone(), Sample { op: sample.op.clone(), operands }]
}
