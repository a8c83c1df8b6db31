//! Cases from the op table.
//!
//! Four sources, cut down to those that differ:
//! - **breadth**: each sample, with every dtype given to all operands that take it, in each layout;
//! - **products**: each combination of dtypes and layouts, on the smallest sample that shows it;
//! - **widths**: rows of 0, 1 and an odd number of elements, of one and of two blocks, where samples left them out;
//! - **edges**: hand-made.
//!
//! Of all these, the forms whose result takes over an operand are cases too.

use std::collections::HashSet;

use entensor_components::{DType, DTypeSet, OPS, OpRow, Sample, SampleOperand, Shape};

use crate::{Case, CaseOperand, Layout, edges};

/// Every case of the suite, no two alike.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for row in OPS.iter().filter(|row| row.computes()) {
        let samples = row.test_samples();
        let first = cases.len();
        for sample in &samples {
            breadth(row, sample, &mut cases);
        }
        for arity in row.min_operands()..=row.operands.len() {
            products(row, arity, &samples, &mut cases);
        }
        let missing = missing_widths(row, &samples, &cases[first..]);
        cases.extend(missing);
    }
    let in_place: Vec<Case> = cases.iter().flat_map(in_place).collect();
    cases.extend(in_place);
    cases.extend(edges::cases());
    let mut seen = HashSet::new();
    cases.retain(|case| seen.insert(case.key()));
    cases
}

/// One sample in every dtype and layout, but not in every mixture of them.
fn breadth(row: &OpRow, sample: &Sample, cases: &mut Vec<Case>) {
    let arity = sample.operands.len();
    for (index, dtypes) in uniform_dtypes(row, arity).iter().enumerate() {
        for layout in Layout::ALL {
            cases.extend(case_all_in(sample, dtypes, layout));
        }
        if index > 0 || arity < 2 {
            continue;
        }
        for (operand, &layout) in (0..arity).flat_map(|operand| Layout::ALL[1..].iter().map(move |l| (operand, l))) {
            cases.extend(case(sample, dtypes, &one_in(arity, operand, layout)));
        }
    }
}

/// Every mixture of dtypes in every layout, on one sample.
fn products(row: &OpRow, arity: usize, samples: &[Sample], cases: &mut Vec<Case>) {
    let mut templates: Vec<&Sample> = samples.iter().filter(|sample| sample.operands.len() == arity).collect();
    // First those that show most layouts, of these the smallest.
    templates.sort_by_key(|sample| (std::cmp::Reverse(shown_layouts(sample)), elements(sample)));
    for dtypes in dtype_combinations(row, arity) {
        for operand in 0..arity {
            for layout in Layout::ALL {
                let whole = templates.iter().find_map(|sample| case_all_in(&widened(sample, &dtypes), &dtypes, layout));
                let shows = |case: &Case| case.operands[operand].layout == layout;
                let alone = one_in(arity, operand, layout);
                let alone = || templates.iter().find_map(|sample| case(&widened(sample, &dtypes), &dtypes, &alone));
                cases.extend(whole.filter(shows).or_else(alone));
            }
        }
        if arity == 0 {
            cases.extend(templates.first().and_then(|sample| case(sample, &[], &[])));
        }
    }
}

/// How many operands have each layout for itself: outer axes that can be permuted, sliced and repeated.
fn shown_layouts(sample: &Sample) -> usize {
    let differs = |operand: &SampleOperand| {
        let Some(packed) = Layout::Contiguous.apply(DType::F32, operand.shape) else { return 0 };
        let others = Layout::ALL[1..].iter();
        others.filter(|layout| layout.apply(DType::F32, operand.shape).is_some_and(|desc| desc != packed)).count()
    };
    if elements(sample) == 0 { 0 } else { sample.operands.iter().map(differs).sum() }
}

fn elements(sample: &Sample) -> u64 {
    sample.operands.iter().map(|operand| operand.shape.elements().unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
}

/// Widths of rows that matter for a dtype.
pub(super) fn edge_widths(dtype: DType) -> Vec<u64> {
    let block = dtype.block_elements();
    if block == 1 { vec![0, 1, 7] } else { vec![block, 2 * block] }
}

/// Whether a case has an operand of a dtype and a width; any odd number above 1 stands for 7.
pub(super) fn has_width(case: &Case, operand: usize, dtype: DType, width: u64) -> bool {
    case.operands.get(operand).is_some_and(|o| {
        let found = o.desc.shape.0[0];
        o.desc.dtype == dtype && (found == width || width == 7 && found > 1 && found % 2 == 1)
    })
}

/// The first sample that an op's rule allows with rows of `width` at one operand, packed.
pub(super) fn case_of_width(row: &OpRow, samples: &[Sample], operand: usize, dtype: DType, width: u64) -> Option<Case> {
    samples.iter().find_map(|sample| {
        let from = sample.operands.get(operand)?.shape.0[0];
        let dtypes = uniform_dtypes(row, sample.operands.len()).into_iter().find(|d| d[operand] == dtype)?;
        case_all_in(&with_width(sample, from, width), &dtypes, Layout::Contiguous)
    })
}

/// Cases of the widths that matter and that no other case has.
fn missing_widths(row: &OpRow, samples: &[Sample], cases: &[Case]) -> Vec<Case> {
    let mut missing: Vec<Case> = Vec::new();
    for (operand, of) in row.operands.iter().enumerate() {
        for dtype in of.dtypes.iter() {
            for width in edge_widths(dtype) {
                if !cases.iter().chain(&missing).any(|case| has_width(case, operand, dtype, width)) {
                    missing.extend(case_of_width(row, samples, operand, dtype, width));
                }
            }
        }
    }
    missing
}

/// Every axis 0 of length `from`, and what must agree with it, made `to`.
fn with_width(sample: &Sample, from: u64, to: u64) -> Sample {
    let widen = |operand: &SampleOperand| {
        let [d0, d1, d2, d3] = operand.shape.0;
        SampleOperand { shape: Shape([if d0 == from { to } else { d0 }, d1, d2, d3]) }
    };
    Sample { op: sample.op.clone(), operands: sample.operands.iter().map(widen).collect() }
}

/// The sample with rows of whole blocks wherever these dtypes need them.
pub(super) fn widened(sample: &Sample, dtypes: &[DType]) -> Sample {
    let mut sample = sample.clone();
    for (operand, dtype) in dtypes.iter().enumerate() {
        let width = sample.operands[operand].shape.0[0];
        if !width.is_multiple_of(dtype.block_elements()) {
            sample = with_width(&sample, width, width.next_multiple_of(dtype.block_elements()));
        }
    }
    sample
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

/// One choice for each dtype that some operand takes: every operand has it, or else its set's first. The first choice is
/// the set's first throughout.
pub(super) fn uniform_dtypes(row: &OpRow, operands: usize) -> Vec<Vec<DType>> {
    let rows = &row.operands[..operands];
    let choice = |dtype: Option<DType>| -> Option<Vec<DType>> {
        let pick = |set: DTypeSet| dtype.filter(|&dtype| set.contains(dtype)).or_else(|| set.iter().next());
        rows.iter().map(|operand| pick(operand.dtypes)).collect()
    };
    let every = DTypeSet::ALL.iter().filter(|&dtype| rows.iter().any(|operand| operand.dtypes.contains(dtype)));
    let mut choices: Vec<Vec<DType>> = [None].into_iter().chain(every.map(Some)).filter_map(choice).collect();
    let mut seen = HashSet::new();
    choices.retain(|choice| seen.insert(choice.clone()));
    choices
}

/// One operand in a layout, the others packed.
fn one_in(operands: usize, operand: usize, layout: Layout) -> Vec<Layout> {
    let mut layouts = vec![Layout::Contiguous; operands];
    layouts[operand] = layout;
    layouts
}

/// The case, where dtypes and layouts are possible.
pub(super) fn case(sample: &Sample, dtypes: &[DType], layouts: &[Layout]) -> Option<Case> {
    let operands = sample.operands.iter().zip(dtypes).zip(layouts);
    let operands: Option<Vec<_>> =
        operands.map(|((operand, &dtype), &layout)| CaseOperand::new(dtype, operand.shape, layout)).collect();
    let case = Case::new(sample.op.clone(), operands?);
    case.is_valid().then_some(case)
}

/// The case with every operand in a layout, but for those that cannot have it: they are packed.
fn case_all_in(sample: &Sample, dtypes: &[DType], layout: Layout) -> Option<Case> {
    let row = sample.op.row();
    let layouts: Vec<Layout> = sample
        .operands
        .iter()
        .zip(dtypes)
        .enumerate()
        .map(|(index, (operand, &dtype))| {
            let written = row.writes == Some(index) && layout == Layout::Broadcast;
            let possible = !written && layout.apply(dtype, operand.shape).is_some();
            if possible { layout } else { Layout::Contiguous }
        })
        .collect();
    case(sample, dtypes, &layouts)
}

/// The forms of a case whose result takes over an operand.
fn in_place(case: &Case) -> Vec<Case> {
    let forms = case.op.row().overwrites.iter().map(|&index| Case { in_place: Some(index), ..case.clone() });
    forms
        .filter(|form| {
            form.operands.get(form.in_place.unwrap_or(0)).is_some_and(|o| o.layout == Layout::Contiguous)
                && form.is_valid()
        })
        .collect()
}
