//! Figures for people: aligned tables, bytes and times in fitting units.

use std::fmt;

use entensor::{PassTimings, Plan, PlanCounters};
use serde::Serialize;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table; the width of each column follows its cells.
pub(crate) struct Table {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let (headings, aligns) = columns.iter().map(|(heading, align)| ((*heading).to_owned(), *align)).unzip();
        Self { aligns, rows: vec![headings] }
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.aligns.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, &width), align) in row.iter().zip(&widths).zip(&self.aligns) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                match align {
                    Align::Left => line += &format!("{cell:<width$}"),
                    Align::Right => line += &format!("{cell:>width$}"),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Bytes with a unit.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Nanoseconds as milliseconds.
#[expect(clippy::cast_precision_loss, reason = "times are far below 2^53 ns")]
pub(crate) fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Figures of one pass over a whole command.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PassFigures {
    /// The pass's word.
    name: &'static str,
    /// How often it ran.
    calls: u64,
    /// Nanoseconds of all runs.
    total_ns: u64,
}

/// Every pass with its figures, in order.
pub(crate) fn pass_figures(timings: &PassTimings) -> Vec<PassFigures> {
    let figures =
        timings.iter().map(|(pass, t)| PassFigures { name: pass.name(), calls: t.calls, total_ns: t.total_ns });
    figures.collect()
}

/// The table of passes.
pub(crate) fn pass_table(passes: &[PassFigures]) -> Table {
    let columns =
        [("pass", Align::Left), ("calls", Align::Right), ("total ms", Align::Right), ("µs/call", Align::Right)];
    let mut table = Table::new(&columns);
    for pass in passes {
        let mean = millis(pass.total_ns.checked_div(pass.calls).unwrap_or(0)) * 1e3;
        let total = format!("{:.3}", millis(pass.total_ns));
        table.row([pass.name.into(), pass.calls.to_string(), total, format!("{mean:.1}")]);
    }
    table
}

/// Why a graph was looked at again, and how often.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReasonFigures {
    reason: &'static str,
    count: u64,
}

/// What the plan cache did, and the last plan.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PlanFigures {
    /// Plans made.
    made: u64,
    /// Graphs that fitted a plan made earlier.
    cached: u64,
    /// Runs that planned nothing.
    unchanged: u64,
    /// Why graphs were looked at again.
    reasons: Vec<ReasonFigures>,
}

impl PlanFigures {
    pub(crate) fn new(counters: &PlanCounters) -> Self {
        let reason = |(reason, &count): (&entensor::PlanReason, &u64)| ReasonFigures { reason: reason.name(), count };
        Self {
            made: counters.planned,
            cached: counters.cached,
            unchanged: counters.unchanged,
            reasons: counters.reasons.iter().map(reason).collect(),
        }
    }
}

impl fmt::Display for PlanFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { made, cached, unchanged, reasons } = self;
        write!(f, "{made} made, {cached} cached, {unchanged} unchanged")?;
        for (i, ReasonFigures { reason, count }) in reasons.iter().enumerate() {
            write!(f, "{}{reason}: {count}", if i == 0 { " (" } else { ", " })?;
        }
        if reasons.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

/// Sizes of one plan.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct PlanSizes {
    /// Runs of nodes on one backend.
    pub(crate) splits: usize,
    /// Copies that one run makes between backends.
    pub(crate) copies: usize,
    /// Bytes that the plan allocates.
    pub(crate) planned_bytes: u64,
}

impl PlanSizes {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self { splits: plan.splits.len(), copies: plan.copies_made(), planned_bytes: plan.planned_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_by_characters() {
        let mut table = Table::new(&[("name", Align::Left), ("µs", Align::Right)]);
        table.row(["größer".into(), "5".into()]);
        table.row(["x".into(), "1234".into()]);
        assert_eq!(table.to_string(), "name      µs\ngrößer     5\nx       1234\n");
    }

    #[test]
    fn bytes_have_fitting_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(98_362_432), "93.8 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }
}
