//! Runs that are watched: pieces, stops, and what is left afterwards.
#![cfg(feature = "cpu")]

use std::{collections::BTreeSet, ops::ControlFlow};

use entensor::{
    DType, Engine, EngineError, GraphBuilder, GraphId, NodeData, NodeObserver, ObservedRun, Tensor, systems::PlanNode,
};

/// Wants some nodes, notes all that happens, and stops at one.
#[derive(Default)]
struct Watcher {
    wanted: BTreeSet<&'static str>,
    stop_at: Option<&'static str>,
    log: Vec<String>,
    seen: Vec<Vec<f32>>,
}

impl NodeObserver for Watcher {
    fn wants(&mut self, node: &PlanNode<'_>) -> bool {
        self.log.push(format!("ask {}", node.name));
        self.wanted.contains(&**node.name)
    }

    fn see(&mut self, data: &NodeData<'_>) -> ControlFlow<()> {
        self.log.push(format!("see {} of {}", data.node.name, data.backend));
        self.seen.push(data.to_f32());
        if self.stop_at == Some(&**data.node.name) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct Watched {
    engine: Engine,
    graph: GraphId,
    y: Tensor,
    state: entensor::TensorId,
}

/// `a` to `c` on one backend, a write into a state, and `e` behind it.
fn watched(backends: &[&str]) -> Result<Watched, Box<dyn std::error::Error>> {
    let mut engine = backends.iter().fold(Engine::builder(), |b, spec| b.backend(*spec)).build()?;
    let state = engine.state("state", DType::F32, &[2])?;
    let mut g = GraphBuilder::new("watched");
    let x = g.input("x", DType::F32, &[2])?;
    let target = g.shared(&state)?;
    let a = g.sqr(x)?;
    let a = g.name("a", a)?;
    let b = g.neg(a)?;
    let b = g.name("b", b)?;
    let c = g.scale(b, 2.0)?;
    let c = g.name("c", c)?;
    let d = g.cpy(c, target)?;
    let d = g.name("d", d)?;
    let e = g.add(d, x)?;
    let y = g.output("e", e)?;
    let graph = engine.add_graph(g);
    engine.write(graph, x, &[3.0_f32, 4.0])?;
    Ok(Watched { engine, graph, y, state })
}

fn run(w: &mut Watched, watcher: &mut Watcher) -> Result<ObservedRun, EngineError> {
    w.engine.run_observed(w.graph, watcher)
}

#[test]
fn a_run_is_cut_only_behind_what_is_wanted() -> Result<(), Box<dyn std::error::Error>> {
    let mut w = watched(&["cpu:threads=1"])?;
    let mut nobody = Watcher::default();
    assert_eq!(run(&mut w, &mut nobody)?, ObservedRun { stopped_at: None, pieces: 1 });
    assert_eq!(nobody.log, ["ask a", "ask b", "ask c", "ask d", "ask e"]);
    let mut result = [0.0_f32; 2];
    w.engine.read(w.graph, w.y, &mut result)?;
    assert_eq!(result, [-15.0, -28.0], "its outputs are there");

    let mut two = Watcher { wanted: ["b", "e"].into(), ..Watcher::default() };
    assert_eq!(run(&mut w, &mut two)?, ObservedRun { stopped_at: None, pieces: 2 });
    // Asked about nothing behind `b` before `b` was shown.
    assert_eq!(two.log, ["ask a", "ask b", "see b of cpu", "ask c", "ask d", "ask e", "see e of cpu"]);
    assert_eq!(two.seen, [[-9.0, -16.0], [-15.0, -28.0]]);

    let mut all = Watcher { wanted: ["a", "b", "c", "d", "e"].into(), ..Watcher::default() };
    assert_eq!(run(&mut w, &mut all)?.pieces, 5);
    assert_eq!(all.seen[0], [9.0, 16.0], "shown before anything is computed in its place");
    assert_eq!(all.seen[3], [-18.0, -32.0], "what is written into a state is shown too");
    Ok(())
}

#[test]
fn a_stop_stops_everything() -> Result<(), Box<dyn std::error::Error>> {
    let mut w = watched(&["cpu:threads=1"])?;
    let mut watcher = Watcher { wanted: ["b", "c"].into(), stop_at: Some("b"), ..Watcher::default() };
    let run_result = run(&mut w, &mut watcher)?;
    assert_eq!(run_result, ObservedRun { stopped_at: Some("b".into()), pieces: 1 });
    assert_eq!(watcher.log, ["ask a", "ask b", "see b of cpu"], "nobody is asked or shown anything more");
    let mut state = [7.0_f32; 2];
    w.engine.read_tensor(&w.state, &mut state)?;
    assert_eq!(state, [0.0; 2], "`d` did not run");
    let error = w.engine.read(w.graph, w.y, &mut [0.0_f32; 2]).expect_err("there are no outputs");
    assert_eq!(error.kind(), "OutputGone");
    // The inputs are still written.
    w.engine.run(w.graph)?;
    let mut result = [0.0_f32; 2];
    w.engine.read(w.graph, w.y, &mut result)?;
    assert_eq!(result, [-15.0, -28.0]);
    Ok(())
}

#[test]
fn splits_and_copies_are_those_of_a_run() -> Result<(), Box<dyn std::error::Error>> {
    // On two backends whose memory differs in nothing: pinned nodes make splits.
    let mut w = watched(&["oracle", "cpu:threads=1"])?;
    w.engine.run(w.graph)?;
    let mut expected = [0.0_f32; 2];
    w.engine.read(w.graph, w.y, &mut expected)?;
    let splits = w.engine.figures(w.graph)?.splits as u64;
    let mut nobody = Watcher::default();
    assert_eq!(run(&mut w, &mut nobody)?, ObservedRun { stopped_at: None, pieces: splits });
    let mut result = [0.0_f32; 2];
    w.engine.read(w.graph, w.y, &mut result)?;
    assert_eq!(result, expected);
    Ok(())
}

#[test]
fn what_a_run_needs_a_watched_run_needs_too() -> Result<(), Box<dyn std::error::Error>> {
    let mut w = watched(&["cpu:threads=1"])?;
    let other = w.engine.add_graph({
        let mut g = GraphBuilder::new("unwritten");
        let x = g.input("x", DType::F32, &[2])?;
        let y = g.sqr(x)?;
        g.output("y", y)?;
        g
    });
    let error = w.engine.run_observed(other, &mut Watcher::default()).expect_err("its input is not written");
    assert_eq!(error.kind(), "InputNotWritten");
    w.engine.remove_graph(other);
    assert_eq!(w.engine.run_observed(other, &mut Watcher::default()), Err(EngineError::UnknownGraph));
    // A graph of several slots goes on to the next one.
    let mut g = GraphBuilder::new("slots");
    g.pipeline_copies(2);
    let x = g.input("x", DType::F32, &[2])?;
    let y = g.sqr(x)?;
    let y = g.output("y", y)?;
    let slots = w.engine.add_graph(g);
    for round in [1.0_f32, 2.0, 3.0] {
        w.engine.write(slots, x, &[round, -round])?;
        w.engine.run_observed(slots, &mut Watcher::default())?;
        let mut result = [0.0_f32; 2];
        w.engine.read(slots, y, &mut result)?;
        assert_eq!(result, [round * round; 2]);
        let error = w.engine.run_observed(slots, &mut Watcher::default()).expect_err("another slot, not written");
        assert_eq!(error.kind(), "InputNotWritten");
    }
    Ok(())
}
