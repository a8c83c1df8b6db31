//! Prompts on the gemm backend above the CPU, on the real model as it is and written as f16 and f32: the recorded text, decode on the CPU,
//! no copies, and every node within the op table's tolerance.
//!
//! Needs the model file named by `ENTENSOR_MODEL`; says so loudly when it is not there.

mod real_model;

use std::{num::NonZeroUsize, path::Path};

use entensor::{Cause, DType, Engine, GraphId};
use entensor_models::{
    LanguageModel, Session, SessionConfig,
    compare::compare_nodes,
    gguf::GgufFile,
    quantize::{Quantization, QuantizeConfig},
};
use real_model::{argmax, path, reference, say};

fn engine(specs: &[&str]) -> Engine {
    let builder = specs.iter().fold(Engine::builder(), |builder, spec| builder.backend(*spec));
    builder.build().expect("the backends start")
}

/// How many products of a plan are on `gemm`, and how many on `cpu`.
fn products(engine: &mut Engine, graph: GraphId) -> [usize; 2] {
    engine.plan(graph).expect("it can be planned");
    let plan = engine.plan_of(graph).expect("it was planned");
    assert_eq!(plan.copies_made(), 0, "both use one kind of memory");
    let products = plan.nodes().filter(|node| node.op.kind().name() == "mul_mat");
    products.fold([0; 2], |mut counts, node| {
        if node.backend == 0 {
            assert!(matches!(node.cause, Cause::Weights | Cause::Cache), "{}: {}", node.name, node.cause);
        } else {
            let why = plan.why(node.index as usize);
            assert!(why.contains("gemm refuses it (1 column, fewer than 32)"), "{}: {why}", node.name);
        }
        counts[node.backend as usize] += 1;
        counts
    })
}

fn check(file: &Path, what: &str) {
    let mut engine = engine(&["gemm:threads=2", "cpu:threads=2"]);
    let model = LanguageModel::load(&mut engine, file, |_| ()).expect("the model loads");
    let mut checked = 0;
    for case in reference("f32").iter().filter(|case| case.greedy_must_match > 0) {
        let tokens = u32::try_from(case.prompt_ids.len()).expect("short");
        assert!(tokens >= 32, "prompts are long enough for gemm");
        let mut session = Session::new(&mut engine, &model, SessionConfig::default()).expect("a small cache");
        let prompt = session.graph_for(&mut engine, &model, tokens).expect("it is built");
        let [gemm, cpu] = products(&mut engine, prompt);
        // All but those of the last layer behind its attention, which are made for the last token alone.
        assert!(gemm >= 200 && cpu <= 5, "{gemm} on gemm, {cpu} on cpu");
        let decode = session.graph_for(&mut engine, &model, 1).expect("it is built");
        assert_eq!(products(&mut engine, decode), [0, gemm + cpu], "decode stays on cpu");
        session.feed(&mut engine, &model, &case.prompt_ids).expect("the prompt runs");
        let mut ids = Vec::new();
        while ids.len() < case.greedy_must_match {
            let next = argmax(session.logits());
            ids.push(next);
            session.feed(&mut engine, &model, &[next]).expect("a token runs");
        }
        assert_eq!(ids, case.generated_ids[..case.greedy_must_match], "{what}, case {}", case.name);
        session.remove(&mut engine);
        checked += 1;
    }
    assert!(checked >= 2, "the reference has cases that must match");
}

fn compare(file: &Path, what: &str) {
    let (mut a, mut b) = (engine(&["cpu:threads=2"]), engine(&["gemm:threads=2", "cpu:threads=2"]));
    let model = LanguageModel::load(&mut a, file, |_| ()).expect("the model loads");
    let cases = reference("f32");
    let ids = &cases.iter().find(|case| case.name == "tavern").expect("a long prompt").prompt_ids;
    let comparison = compare_nodes(&mut a, &mut b, &model, &ids[..40]).expect("it is compared");
    say(&format!("{what}, cpu against gemm: {comparison}"));
    assert_eq!(comparison.over(), 0, "{comparison}");
    assert!(comparison.nodes.len() > 500);
    let on_gemm = comparison.nodes.iter().filter(|node| &*node.backend_b == "gemm").count();
    assert!(on_gemm > 200, "{on_gemm} nodes were on gemm");
}

#[test]
fn the_model_as_it_is() {
    let Some(model) = path() else { return };
    check(&model, "q4_1");
    compare(&model, "q4_1");
}

#[test]
fn the_model_written_as_f16_and_f32() {
    let Some(model) = path() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = GgufFile::open(model).expect("a model");
    for dtype in [DType::F16, DType::F32] {
        let file = folder.path().join(format!("{dtype}.gguf"));
        let quantization =
            Quantization::plan(&input, &QuantizeConfig { dtype, keep: Vec::new() }).expect("weights can be written so");
        quantization.write(&file, NonZeroUsize::MIN, |_| ()).expect("there is room");
        check(&file, dtype.name());
        compare(&file, dtype.name());
        std::fs::remove_file(file).expect("it was written");
    }
}
