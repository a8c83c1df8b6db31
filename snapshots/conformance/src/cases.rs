//! Cases from the op table.
//!
//! Four sources, cut down to those that differ:
//! - **breadth**: each sample, with every dtype given to all operands that take it, in each layout;
//! - **mixtures**: dtypes of operands mixed, in each layout, on the smallest sample that shows it;
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
            mixtures(row, arity, &samples, &mut cases);
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

/// Every mixture of dtypes in the layouts that it needs, on small samples.
fn mixtures(row: &OpRow, arity: usize, samples: &[Sample], cases: &mut Vec<Case>) {
    let samples: Vec<&Sample> = samples.iter().filter(|sample| sample.operands.len() == arity).collect();
    for (dtypes, layouts) in dtype_mixtures(row, arity) {
        let mut templates: Vec<Sample> = samples.iter().map(|sample| widened(sample, &dtypes)).collect();
        // Nothing and single elements show little.
        templates.sort_by_key(|sample| Some(elements(sample)).filter(|n| *n > arity as u64).unwrap_or(u64::MAX));
        for (operand, &layout) in (0..arity).flat_map(|operand| layouts.iter().map(move |layout| (operand, layout))) {
            let whole = || templates.iter().filter_map(|sample| case_all_in(sample, &dtypes, layout));
            let alone = one_in(arity, operand, layout);
            let alone = || templates.iter().filter_map(|sample| case(sample, &dtypes, &alone));
            let shown = whole().chain(alone()).find(|case| shows(case, operand, layout));
            cases.extend(shown.or_else(|| alone().next()));
        }
        if arity == 0 {
            cases.extend(templates.first().and_then(|sample| case(sample, &[], &[])));
        }
    }
}

/// Whether an operand has a layout that differs from the packed one on its shape.
pub(super) fn shows(case: &Case, operand: usize, layout: Layout) -> bool {
    let CaseOperand { desc, layout: found } = case.operands[operand];
    found == layout && (layout == Layout::Contiguous || Layout::Contiguous.apply(desc.dtype, desc.shape) != Some(desc))
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

/// How many mixtures of dtypes an op may have for all of them to be tried in every layout.
const FEW_MIXTURES: usize = 64;

/// The mixtures of dtypes that have cases, each with the layouts that some case gives to each operand.
///
/// Of the operands that must be given, the two that take most dtypes are mixed in full, and the others take turns; each
/// operand that may be left out is mixed with uniform choices for those before it. Uniform choices are tried in every
/// layout, and so is every mixture, if there are few.
pub(super) fn dtype_mixtures(row: &OpRow, operands: usize) -> Vec<(Vec<DType>, &'static [Layout])> {
    let sets: Vec<Vec<DType>> =
        row.operands[..operands].iter().map(|operand| operand.dtypes.iter().collect()).collect();
    let uniform = uniform_dtypes(row, operands);
    let mut mixtures = uniform.clone();
    if operands > row.min_operands() {
        for before in uniform_dtypes(row, operands - 1) {
            mixtures.extend(sets[operands - 1].iter().map(|&last| before.iter().copied().chain([last]).collect()));
        }
    } else if operands > 1 {
        let mut by_count: Vec<usize> = (0..operands).collect();
        by_count.sort_by_key(|&operand| std::cmp::Reverse(sets[operand].len()));
        for (i, j) in (0..sets[by_count[0]].len()).flat_map(|i| (0..sets[by_count[1]].len()).map(move |j| (i, j))) {
            let mut mixture = uniform[0].clone();
            for (turn, &operand) in by_count.iter().enumerate() {
                let at = [i, j].get(turn).copied().unwrap_or_else(|| i + (turn - 1) * j);
                mixture[operand] = sets[operand][at % sets[operand].len()];
            }
            mixtures.push(mixture);
        }
    }
    let mut seen = HashSet::new();
    mixtures.retain(|mixture| seen.insert(mixture.clone()));
    let few = mixtures.len() <= FEW_MIXTURES;
    let layouts = |mixture: &Vec<DType>| -> &'static [Layout] {
        if few || uniform.contains(mixture) { &Layout::ALL } else { &[Layout::Contiguous, Layout::Sliced] }
    };
    mixtures.into_iter().map(|mixture| (mixture.clone(), layouts(&mixture))).collect()
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
