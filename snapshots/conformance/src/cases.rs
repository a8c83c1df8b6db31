//! Cases from the op table: samples × dtypes × layouts, and in-place forms.

use entensor_components::{DType, OPS, OpRow, Sample};

use crate::{Case, CaseOperand, Layout, edges};

/// Every case of the suite.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for row in OPS.iter().filter(|row| row.computes()) {
        for sample in row.test_samples() {
            for dtypes in dtype_combinations(row, sample.operands.len()) {
                for layouts in layout_combinations(sample.operands.len()) {
                    cases.extend(case(&sample, &dtypes, &layouts));
                }
            }
        }
    }
    let in_place: Vec<Case> = cases.iter().flat_map(in_place).collect();
    cases.extend(in_place);
    cases.extend(edges::cases());
    cases
}

/// Every choice of a dtype for each operand.
pub(super) fn dtype_combinations(row: &OpRow, operands: usize) -> Vec<Vec<DType>> {
    row.operands[..operands].iter().fold(vec![Vec::new()], |combinations, operand| {
        let extend = |dtypes: Vec<DType>| {
            operand.dtypes.iter().map(move |dtype| dtypes.iter().copied().chain([dtype]).collect()).collect::<Vec<_>>()
        };
        combinations.into_iter().flat_map(extend).collect()
    })
}

/// All operands in one layout, and each operand alone in one while the others are packed.
fn layout_combinations(operands: usize) -> Vec<Vec<Layout>> {
    let mut combinations: Vec<Vec<Layout>> = Layout::ALL.iter().map(|&layout| vec![layout; operands]).collect();
    if operands > 1 {
        for &layout in &Layout::ALL[1..] {
            for operand in 0..operands {
                let mut layouts = vec![Layout::Contiguous; operands];
                layouts[operand] = layout;
                combinations.push(layouts);
            }
        }
    }
    combinations
}

/// The case, where dtypes and layouts are possible.
pub(super) fn case(sample: &Sample, dtypes: &[DType], layouts: &[Layout]) -> Option<Case> {
    let operands = sample.operands.iter().zip(dtypes).zip(layouts);
    let operands: Option<Vec<_>> =
        operands.map(|((operand, &dtype), &layout)| CaseOperand::new(dtype, operand.shape, layout)).collect();
    let case = Case::new(sample.op.clone(), operands?);
    case.is_valid().then_some(case)
}

/// The forms of a case whose result takes over an operand.
fn in_place(case: &Case) -> Vec<Case> {
    let possible = |&&index: &&usize| {
        let operand = case.operands.get(index);
        operand.is_some_and(|o| o.layout == Layout::Contiguous && o.desc == case.output())
    };
    let taken = case.op.row().overwrites.iter().filter(possible);
    taken.map(|&index| Case { in_place: Some(index), ..case.clone() }).collect()
}
