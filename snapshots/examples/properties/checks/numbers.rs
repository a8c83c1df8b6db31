//! The same bits wherever a graph runs: as one host's, under every legal placement, any number of slots and any largest buffer,
//! with a new plan or one from the cache.

use std::{fmt::Write as _, sync::Arc};

use entensor::graph_text::GraphText;
use entensor_snapshots::generate::Random;
use entensor_systems::{Plan, Recording};

use super::{
    Summary, Tools,
    devices::{Machine, Outcome},
    planning::{Planner, parse, proved, typed},
};

/// Largest buffers that machines get in turn; the first keeps those of the text.
const CHUNKS: [&str; 6] = ["own", "300", "1K", "2500", "8K", "any"];

/// Up to so many legal placements, each is tried; of more, a few.
const MOST_PLACEMENTS: usize = 32;
const FEW_PLACEMENTS: usize = 6;

/// How many of a hundred graphs are planned and run in a new world as well.
const FRESH_PERCENT: u64 = 30;

/// Runs on the one host: enough for four slots, and one of them again.
const RUNS: u32 = 5;

/// A graph's wishes.
struct Wishes {
    pins: Vec<Option<u32>>,
    copies: u32,
}

/// The same graph on a machine of one host, which takes the place of every device.
fn on_one_host(source: &str) -> String {
    let mut text = "backend cpu\n".to_owned();
    for line in source.lines().filter(|line| !line.starts_with("backend ") && !line.starts_with("copies ")) {
        let line = ["dev0", "dev1", "dev2"].iter().fold(line.to_owned(), |line, device| line.replace(device, "cpu"));
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The same machine with other largest buffers.
fn with_largest_buffers(source: &str, chunk: &str) -> String {
    let mut text = String::new();
    for line in source.lines() {
        if chunk == "own" || !line.starts_with("backend ") {
            let _ = writeln!(text, "{line}");
            continue;
        }
        let words: Vec<&str> = line.split(' ').filter(|word| !word.starts_with("max_buffer=")).collect();
        let limit = if chunk == "any" { String::new() } else { format!(" max_buffer={chunk}") };
        let _ = writeln!(text, "{}{limit}", words.join(" "));
    }
    text
}

/// The same graph with these wishes instead of its own.
fn with_wishes(source: &str, text: &GraphText, wishes: &Wishes) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in source.lines().filter(|line| !line.starts_with("pin ") && !line.starts_with("copies ")) {
        let words = line.split(' ').filter(|word| !word.starts_with("pin="));
        lines.push(words.collect::<Vec<_>>().join(" "));
    }
    for (tensor, pin) in text.tensors().iter().zip(&wishes.pins) {
        lines.extend(pin.map(|pin| format!("pin {} {}", tensor.name, text.machine()[pin as usize].name)));
    }
    lines.push(format!("copies {}\n", wishes.copies));
    lines.join("\n")
}

/// Where each piece of memory can be: its place in the text, and the backends that all its nodes can run on.
fn choices(text: &GraphText, plan: &Plan) -> Vec<(usize, Vec<u32>)> {
    let mut of_root: Vec<Option<Vec<u32>>> = plan
        .nodes()
        .enumerate()
        .map(|(i, node)| {
            let is_planned = node.root as usize == i && node.existing.is_none();
            is_planned.then(|| (0..).take(plan.backends.len()).collect())
        })
        .collect();
    for (i, node) in plan.nodes().enumerate().filter(|(_, node)| node.op.row().computes()) {
        // Existing memory has a choice only where something is written into it.
        let choice = of_root[node.root as usize].get_or_insert_with(|| (0..).take(plan.backends.len()).collect());
        choice.retain(|&backend| plan.supported.get(i, backend as usize));
    }
    let place = |name: &str| text.tensors().iter().position(|tensor| *tensor.name == *name);
    let choice = |(i, choice): (usize, Option<Vec<u32>>)| Some((place(plan.node(i).name)?, choice?));
    of_root.into_iter().enumerate().filter_map(choice).collect()
}

/// Every legal placement where there are few, else some of them.
fn placements(tensors: usize, choices: &[(usize, Vec<u32>)], random: &mut Random) -> (Vec<Vec<Option<u32>>>, bool) {
    let count = choices.iter().fold(1_usize, |count, (_, choice)| count.saturating_mul(choice.len()));
    let every = count <= MOST_PLACEMENTS;
    let mut all = Vec::new();
    for number in 0..if every { count } else { FEW_PLACEMENTS } {
        let (mut pins, mut rest) = (vec![None; tensors], number);
        // One of them has every tensor pinned, the others leave some to the passes.
        let pinned = if every || number == 0 { 100 } else { 15 * number as u64 };
        for (tensor, choice) in choices {
            if every {
                pins[*tensor] = Some(choice[rest % choice.len()]);
                rest /= choice.len();
            } else if random.percent(pinned) {
                pins[*tensor] = Some(*random.pick(choice));
            }
        }
        all.push(pins);
    }
    (all, every)
}

fn compare(found: &[Outcome], expected: &[Outcome], runs: u32) -> Result<(), String> {
    let expected = &expected[..expected.len().min(runs as usize)];
    if found == expected {
        return Ok(());
    }
    for (run, (found, expected)) in found.iter().zip(expected).enumerate() {
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                let pairs = || found.iter().zip(expected);
                if let Some(((name, found), (_, expected))) = pairs().find(|(a, b)| a != b) {
                    let byte = found.iter().zip(expected).position(|(a, b)| a != b);
                    return Err(format!("run {run}: `{name}` is not as on one host from byte {byte:?} on"));
                }
            }
            (found, expected) if found != expected => {
                return Err(format!(
                    "run {run}: {:?}, on one host {:?}",
                    found.as_ref().err(),
                    expected.as_ref().err()
                ));
            }
            _ => {}
        }
    }
    Err(format!("{} runs, on one host {}", found.len(), expected.len()))
}

fn same_plan(a: &Plan, b: &Plan) -> bool {
    let steps = |plan: &Plan| plan.programs.iter().map(|program| program.steps.clone()).collect::<Vec<_>>();
    (&a.placements, &a.causes, &a.launches, &a.splits) == (&b.placements, &b.causes, &b.launches, &b.splits)
        && (&a.split_inputs, &a.copies, &a.buffers, &a.allocations)
            == (&b.split_inputs, &b.copies, &b.buffers, &b.allocations)
        && steps(a) == steps(b)
}

/// Compares a graph under many wishes with the same graph on one host. `turn` chooses among what is varied.
pub(super) fn check(turn: u64, source: &str, tools: &mut Tools, summary: &mut Summary) -> Result<(), String> {
    let chunk = CHUNKS[usize::try_from(turn / 2 % CHUNKS.len() as u64).expect("few")];
    let source = with_largest_buffers(source, chunk);
    let text = parse(&source)?;
    let no_pins = vec![None; text.tensors().len()];
    let Some(mut machine) = Machine::new(&mut tools.devices, &text) else { return Ok(()) };
    let mut random = Random::new(turn);
    let own = Wishes {
        pins: text.tensors().iter().map(|t| t.pin.map(|pin| u32::try_from(pin).expect("few"))).collect(),
        copies: text.copies(),
    };
    let consumes = turn % 3 == 1;
    machine.consume_inputs(consumes);
    machine.set(&no_pins, 1);
    let free = match machine.planner.plan() {
        Ok(plan) => plan,
        Err(error) => return typed(&error).map(drop),
    };
    let one = on_one_host(&source);
    let one = Machine::new(&mut tools.one_host, &parse(&one)?).ok_or("memory does not fit one host")?.on_one()?;
    let choices = choices(&text, &free);
    let (placements, every) = placements(no_pins.len(), &choices, &mut random);
    let wished = |(pins, copies)| Wishes { pins, copies };
    let legal = placements.into_iter().zip((1..=4).cycle().skip(usize::try_from(turn % 4).expect("few"))).map(wished);
    // Legal pins are taken; what the text wishes, and what is left to the passes, may be refused.
    let all = [(own, false), (Wishes { pins: no_pins, copies: 1 + (turn % 3) as u32 }, false)];
    let all = all.into_iter().chain(legal.map(|wishes| (wishes, true)));
    let mut ran: Vec<(Wishes, Arc<Plan>)> = Vec::new();
    for (wishes, is_legal) in all {
        machine.set(&wishes.pins, wishes.copies);
        let with_wishes = |message: String| format!("{message}\n--- as\n{}", with_wishes(&source, &text, &wishes));
        let plan = match machine.planner.plan() {
            Ok(plan) => plan,
            Err(error) => {
                let kind = typed(&error).map_err(with_wishes)?;
                if is_legal && kind.starts_with("Pin") {
                    return Err(with_wishes(format!("a legal placement is refused: {error}")));
                }
                *summary.unplannable.entry(kind).or_default() += 1;
                continue;
            }
        };
        proved(&plan).map_err(with_wishes)?;
        for (i, pin) in wishes.pins.iter().enumerate().filter_map(|(i, pin)| Some((i, (*pin)?))) {
            let node = plan.find(&text.tensors()[i].name);
            if node.is_some_and(|node| plan.placements[node] != pin) {
                return Err(with_wishes(format!("`{}` is not where it is pinned", text.tensors()[i].name)));
            }
        }
        let runs = wishes.copies + 1;
        let found = machine.results(&plan, runs).map_err(with_wishes)?;
        compare(&found, &one, runs).map_err(with_wishes)?;
        summary.placements += 1;
        summary.runs += u64::from(runs);
        summary.spread += u64::from(plan.copies_made() > 0);
        summary.copies[wishes.copies as usize - 1] += 1;
        *summary.chunks.entry(chunk).or_default() += 1;
        ran.push((wishes, plan));
    }
    let (Some((first, plan)), Some((last, last_plan))) = (ran.first(), ran.last()) else { return Ok(()) };
    summary.compared += 1;
    summary.exhausted += u64::from(every);
    run_cached(&mut machine, first, plan, &one)?;
    summary.cached += 1;
    summary.runs += u64::from(first.copies + 1);
    summary.consuming += u64::from(consumes);
    if !random.percent(FRESH_PERCENT) {
        return Ok(());
    }
    let fresh = with_wishes(&source, &text, last);
    run_fresh(&fresh, last, last_plan, consumes, &one).map_err(|message| format!("{message}\n--- as\n{fresh}"))?;
    summary.fresh += 1;
    summary.runs += u64::from(last.copies + 1);
    Ok(())
}

/// Goes back to wishes that were planned before.
fn run_cached(machine: &mut Machine<'_>, wishes: &Wishes, plan: &Arc<Plan>, one: &[Outcome]) -> Result<(), String> {
    let before = machine.planner.cached();
    machine.set(&wishes.pins, wishes.copies);
    let again = machine.planner.plan().map_err(|error| format!("what was planned before is refused: {error}"))?;
    if !Arc::ptr_eq(&again, plan) || machine.planner.cached() != before + 1 {
        return Err("what was planned before is not found again".into());
    }
    let found = machine.results(&again, wishes.copies + 1)?;
    compare(&found, one, wishes.copies + 1).map_err(|message| format!("from the cache: {message}"))
}

/// Plans and runs wishes in a new world, which has to come to the same plan as one that has planned much else.
fn run_fresh(source: &str, wishes: &Wishes, plan: &Plan, consumes: bool, one: &[Outcome]) -> Result<(), String> {
    let mut planner = Planner::new(Recording::Off);
    let mut machine = Machine::new(&mut planner, &parse(source)?).ok_or("memory fits only once")?;
    machine.consume_inputs(consumes);
    let fresh = machine.planner.plan().map_err(|error| format!("a new world refuses: {error}"))?;
    if !same_plan(&fresh, plan) {
        return Err("a new world comes to another plan".into());
    }
    let found = machine.results(&fresh, wishes.copies + 1)?;
    compare(&found, one, wishes.copies + 1).map_err(|message| format!("in a new world: {message}"))
}

impl Machine<'_> {
    /// What the one host computes.
    fn on_one(self) -> Result<Vec<Outcome>, String> {
        let plan = self.planner.plan().map_err(|error| format!("one host has no plan: {error}"))?;
        if plan.copies_made() > 0 {
            return Err("one host copies to itself".into());
        }
        self.results(&plan, RUNS)
    }
}
