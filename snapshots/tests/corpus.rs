//! The corpus: what its files are, and that every one of them is planned, proved, printed the same twice, and packed tightly.

mod common;

use std::{collections::BTreeSet, env, fmt::Write as _, fs, sync::Arc};

use common::{Planned, folder};
use entensor::graph_text::GraphText;
use entensor_snapshots::corpus::{CorpusFile, files, readme};
use entensor_systems::{Plan, verify};

/// More than a person reads through.
const MOST_LINES: usize = 1500;
/// Planned bytes ÷ lower bound, in thousandths.
const WORST_RATIO: u64 = 1100;
const MEAN_RATIO: u64 = 1020;

fn corpus() -> Vec<CorpusFile> {
    files().unwrap_or_else(|error| panic!("{error}"))
}

/// A file as it lies in the folder.
fn read(file: &CorpusFile) -> GraphText {
    let text = fs::read_to_string(folder("corpus").join(format!("{}.graph", file.name))).expect("the file is there");
    common::parse(file.name, &text)
}

fn proved(name: &str, text: &GraphText) -> (String, Arc<Plan>) {
    let planned = Planned::new(text);
    let plan = planned.result().unwrap_or_else(|error| panic!("{name}: {error}"));
    verify(&plan).unwrap_or_else(|violations| panic!("{name}: {violations:?}"));
    (planned.text(), plan)
}

/// Planned bytes over the lower bound, in thousandths, rounded up.
fn ratio(plan: &Plan) -> u64 {
    (plan.planned_bytes() * 1000).div_ceil(plan.lower_bound_bytes.max(1))
}

/// The files and the README, as the generator writes them. `ENTENSOR_WRITE_CORPUS=1` writes them.
#[test]
fn the_files_are_what_the_generator_writes() {
    let files = corpus();
    let texts = files.iter().map(|file| (format!("{}.graph", file.name), file.text.clone()));
    let texts: Vec<(String, String)> = texts.chain([("README.md".to_owned(), readme(&files))]).collect();
    if env::var_os("ENTENSOR_WRITE_CORPUS").is_some() {
        for (name, text) in &texts {
            fs::write(folder("corpus").join(name), text).expect("the folder can be written");
        }
    }
    for (name, text) in &texts {
        let found = fs::read_to_string(folder("corpus").join(name)).unwrap_or_default();
        assert!(found == *text, "corpus/{name} differs from the generator; ENTENSOR_WRITE_CORPUS=1 writes it");
        assert!(text.lines().count() <= MOST_LINES, "{name} has {} lines", text.lines().count());
    }
    let expected: BTreeSet<String> = texts.into_iter().map(|(name, _)| name).collect();
    let found = fs::read_dir(folder("corpus")).expect("the corpus is there");
    let found: BTreeSet<String> =
        found.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(found, expected, "remove what no generator writes");
    assert!(files.len() >= 14);
}

/// Long texts that should be equal; tells the first line that is not.
fn assert_same(name: &str, what: &str, one: &str, other: &str) {
    let difference = one.lines().zip(other.lines()).enumerate().find(|(_, (a, b))| a != b);
    assert!(one == other, "{name} differs {what}: {difference:?}");
}

/// Texts round-trip, and so do plans: the graph that is read back from a world is planned to the same text.
#[test]
fn every_file_is_proved_planned_the_same_twice_and_round_trips() {
    for file in corpus() {
        let text = read(&file);
        let (passes, _) = proved(file.name, &text);
        assert_same(file.name, "the second time", &passes, &proved(file.name, &text).0);
        let again = common::parse(file.name, &text.to_string());
        assert_eq!(again, text, "{}", file.name);
        assert_same(file.name, "after it was printed", &passes, &proved(file.name, &again).0);

        let planned = Planned::new(&text);
        let captured = GraphText::from_graph(&planned.world, planned.graph).unwrap_or_else(|e| panic!("{e}"));
        // The ops that a backend refuses are no part of what is captured, since text has no words for most refusals.
        let captured = common::parse(file.name, &captured.to_string()).with_machine(&text).expect("the same backends");
        assert_same(file.name, "after it was captured", &passes, &proved(file.name, &captured).0);
    }
}

/// What the generator writes itself is in the canonical form; random texts are not.
#[test]
fn files_are_in_the_form_that_is_printed() {
    for file in corpus().iter().filter(|file| !file.name.starts_with("random")) {
        let body: String = file.text.lines().filter(|line| !line.starts_with('#')).map(|l| format!("{l}\n")).collect();
        assert!(read(file).to_string() == body, "{}", file.name);
    }
}

#[test]
fn every_file_is_proved_with_every_number_of_copies() {
    for file in corpus() {
        let text = read(&file);
        for copies in [1, 2, 3, 4] {
            proved(file.name, &text.clone().with_copies(copies));
        }
    }
}

/// The numbers of every file: integers, so that the golden is exact.
#[test]
fn the_table_is_as_the_golden_says() {
    let mut table = String::from("file backends nodes splits copies planned_bytes lower_bound_bytes ratio_x1000\n");
    for file in corpus() {
        let (_, plan) = proved(file.name, &read(&file));
        let (backends, nodes, splits) = (plan.backends.len(), plan.node_count(), plan.splits.len());
        let (copies, planned, bound) = (plan.copies_made(), plan.planned_bytes(), plan.lower_bound_bytes);
        let ratio = ratio(&plan);
        let _ = writeln!(table, "{} {backends} {nodes} {splits} {copies} {planned} {bound} {ratio}", file.name);
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder("golden"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("corpus", table));
}

/// Report 20: planned bytes are close to the largest live set, for each graph and on average.
#[test]
fn planned_memory_is_close_to_the_lower_bound() {
    let ratios = corpus().into_iter().map(|file| (file.name, ratio(&proved(file.name, &read(&file)).1)));
    let ratios: Vec<(&str, u64)> = ratios.collect();
    for &(name, ratio) in &ratios {
        assert!(ratio <= WORST_RATIO, "{name}: {ratio} thousandths of the lower bound");
    }
    let sum: u64 = ratios.iter().map(|(_, ratio)| ratio).sum();
    assert!(sum <= MEAN_RATIO * ratios.len() as u64, "{ratios:?}");
}

/// Where everything else is on the device, the host's arena holds a few small inputs that live throughout: alignment keeps them
/// above the target of the search, and there is nothing to search.
#[test]
fn memory_that_lives_throughout_ends_the_search() {
    let text = "backend gpu reads=host\nbackend cpu\nweight w f32 [32,512] on gpu\n\
                input a i32 [1]\ninput b i32 [1]\ninput c f32 [1]\ninput d f32 [32]\n\
                x = get_rows w a\ny = get_rows w b\nz = add x y\nu = add z c\nv = add u d output";
    let (_, plan) = proved("small", &common::parse("small", text));
    assert!(plan.planned_bytes() > 0);
}

/// Files with `backend` lines only, for `--machine`: every decoder of the corpus that lies on the host can be asked about on them,
/// as it is and with half of its layers on the first backend.
#[test]
fn decoders_are_planned_on_every_example_of_a_machine() {
    let mut machines = 0;
    for entry in fs::read_dir(folder("machines")).expect("the examples are there") {
        let path = entry.expect("readable").path();
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("readable");
        assert!(text.starts_with("# "), "{name} says what it is");
        let machine = common::parse(&name, &text);
        assert!(machine.tensors().is_empty() && machine.buffers().is_empty() && machine.machine().len() > 1, "{name}");
        let on_host = ["llama_decode_cpu", "llama_prompt_cpu", "llama_prompt_offload"];
        let files = corpus();
        for file in files.iter().filter(|file| on_host.contains(&file.name)) {
            let moved = read(file).with_machine(&machine).expect("everything is on the host");
            proved(&name, &moved);
            let upper = |tensor: &str| {
                let layer = tensor.rsplit('.').find_map(|part| part.parse::<u32>().ok());
                let layer = layer.or_else(|| tensor.split('.').nth(1)?.parse().ok());
                layer.is_some_and(|layer| layer >= 8)
            };
            let moved = moved.with_memory_on(0, upper);
            let (_, plan) = proved(&name, &moved);
            let host = machine.machine().len() - 1;
            let taken = plan.nodes().filter(|node| (node.backend as usize) < host && node.op.row().computes()).count();
            assert!(name == "server_with_blas" || taken > 100, "{name}, {}: {taken} nodes leave the host", file.name);
        }
        machines += 1;
    }
    assert!(machines >= 4, "{machines} machines");
}
