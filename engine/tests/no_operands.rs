//! Graphs that begin with nodes that read nothing.

use entensor::{DType, Engine, GraphBuilder, UpscaleMode, graph_text::GraphText};

#[test]
fn a_graph_without_leaves_plans_and_runs() {
    for backend in ["cpu:threads=2", "oracle"] {
        let mut engine = Engine::builder().backend(backend).verify_plans(true).build().expect("the backend starts");
        let mut g = GraphBuilder::new("numbers");
        let ramp = g.arange(1.0, 5.0, 1.0).expect("four numbers");
        let square = g.sqr(ramp).expect("shapes fit");
        let both = g.concat(ramp, square, 1).expect("shapes fit");
        let wide = g.upscale(both, [8, 2, 1, 1], UpscaleMode::Nearest, false).expect("shapes fit");
        let half = g.cast(wide, DType::F16).expect("real numbers");
        let back = g.cast(half, DType::F32).expect("real numbers");
        let back = g.output("back", back).expect("a free name");
        let alone = g.arange(0.0, 0.0, 1.0).expect("no numbers at all");
        g.output("alone", alone).expect("a free name");
        let graph = engine.add_graph(g);
        // The second run uses the plan of the first.
        for _ in 0..2 {
            engine.run(graph).expect("runs");
            let mut found = [0.0; 16];
            engine.read(graph, back, &mut found).expect("an output");
            let expected = [1, 1, 2, 2, 3, 3, 4, 4, 1, 1, 4, 4, 9, 9, 16, 16_i8].map(f32::from);
            assert_eq!(found, expected, "{backend}");
        }
        assert_eq!(engine.counters().planned, 1);
    }
}

#[test]
fn text_says_nodes_without_operands() {
    const TEXT: &str = "backend cpu\na = arange start=0 stop=4\nb = arange stop=2.5 step=0.5 output\nrun a,b\n";
    let text = GraphText::parse("numbers.graph", TEXT).expect("a legal text");
    let printed = text.to_string();
    assert!(printed.contains("\na = arange stop=4.0\n"), "{printed}");
    assert_eq!(GraphText::parse("numbers.graph", &printed), Ok(text));
    let error = GraphText::parse("numbers.graph", "backend cpu\na = arange step=0").expect_err("no end");
    assert!(error.to_string().contains("`step`"), "{error}");
    let error = GraphText::parse("n.graph", "backend cpu\na = arange\nb = arange a").expect_err("an operand too many");
    assert!(error.to_string().contains("takes 0 operands"), "{error}");
}
