//! What is wrong is said on standard error, with what to do; nothing panics.

mod common;

use std::path::Path;

use common::{Files, Tiny, entensor};
use entensor::Engine;
use entensor_models::{
    LanguageModel, ModelError, Session, SessionConfig,
    gguf::GgufHeader,
    sampling::{Sampler, SamplerConfig},
};

/// Loads a file and lets the model say two tokens, as `run` does.
fn try_out(path: &Path) -> Result<(), ModelError> {
    let mut engine = Engine::builder().backend("cpu:threads=1").verify_plans(false).build()?;
    let model = LanguageModel::load(&mut engine, path, |_| ())?;
    let prompt = model.tokenizer().encode("the <|im_start|> sea", true)?;
    let mut session = Session::new(&mut engine, &model, SessionConfig { context: 40, ..SessionConfig::default() })?;
    session.feed(&mut engine, &model, &prompt)?;
    let mut sampler = Sampler::new(SamplerConfig::default())?;
    let id = sampler.sample(session.logits())?;
    session.feed(&mut engine, &model, &[id])?;
    sampler.sample(session.logits())?;
    Ok(())
}

#[test]
fn truncated_files_are_errors() {
    let files = Files::new();
    let bytes = Tiny::default().build();
    assert!(try_out(&files.write("whole.gguf", &bytes)).is_ok());
    let header = GgufHeader::parse(&bytes).expect("valid").data_offset as usize;
    // 400 places in the header, 100 in the data, the last one a byte short.
    let in_header = (0..400).map(|i| i * header / 400);
    let in_data = (0..100).map(|i| header + i * (bytes.len() - 64 - header) / 99);
    for length in in_header.chain(in_data) {
        let path = files.write("cut.gguf", &bytes[..length]);
        let error = try_out(&path).expect_err("a part of a model is no model");
        assert!(error.to_string().len() > 20, "{length}: {error}");
    }
    for length in [0, 3, 4, 24, 100, header - 1, header, header + 5000] {
        let path = files.write("cut.gguf", &bytes[..length]);
        for (subcommand, args) in [
            ("run", &["-p", "a"][..]),
            ("tokenize", &["-p", "a"]),
            ("inspect", &[]),
            ("logits", &["-p", "a"]),
            ("bench", &["-p", "1", "-n", "1"]),
        ] {
            let ran = entensor(subcommand, &path, args);
            assert!(matches!(ran.code, 1 | 2) && ran.stdout.is_empty(), "{subcommand} {length}: {ran:?}");
        }
        // As a text it would be no better.
        for subcommand in ["plan", "explain"] {
            let ran = entensor(subcommand, &path, &[]);
            assert!(matches!(ran.code, 1 | 2) && ran.stdout.is_empty(), "{subcommand} {length}: {ran:?}");
        }
    }
}

#[test]
fn flipped_bytes_in_the_header_never_panic() {
    let files = Files::new();
    let bytes = Tiny::default().build();
    let header = GgufHeader::parse(&bytes).expect("valid").data_offset as usize;
    let (mut random, mut refused) = (7_u64, 0);
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize
    };
    for i in 0..2000 {
        let mut damaged = bytes.clone();
        let at = i * header / 2000;
        damaged[at] ^= match i % 3 {
            0 => 1 << (next() % 8),
            1 => 0xff,
            _ => (1 + next() % 255) as u8,
        };
        refused += u32::from(try_out(&files.write("flipped.gguf", &damaged)).is_err());
    }
    // Flips in names of tokens and the like do no harm; most others are noticed.
    assert!((500..2000).contains(&refused), "{refused} of 2000 were refused");
}

#[test]
fn models_that_lack_something_are_refused_by_name() {
    let files = Files::new();
    for (tiny, words) in [
        (
            Tiny { missing: Some("blk.1.ffn_up.weight"), ..Tiny::default() },
            ["no tensor `blk.1.ffn_up.weight`", "incomplete"],
        ),
        (
            Tiny { missing: Some("token_embd.weight"), ..Tiny::default() },
            ["no tensor `token_embd.weight`", "incomplete"],
        ),
        (
            Tiny { misshapen: Some(("blk.0.attn_k.weight", [64, 64])), ..Tiny::default() },
            ["`blk.0.attn_k.weight` has shape [64, 64", "damaged"],
        ),
        (Tiny { architecture: "mamba", ..Tiny::default() }, ["architecture \"mamba\" is not supported", "llama"]),
    ] {
        let model = files.write("bad.gguf", tiny.build());
        for (subcommand, args) in [("run", &["-p", "a"][..]), ("plan", &[]), ("bench", &[])] {
            let error = entensor(subcommand, &model, args).failed(1);
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}

#[test]
fn unknown_dtypes_are_refused_by_tensor() {
    let files = Files::new();
    let mut bytes = Tiny::default().build();
    let name = b"output_norm.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("the tensor's name");
    // Behind the name: the number of dimensions, one dimension, the dtype.
    bytes[at + name.len() + 4 + 8] = 200;
    let model = files.write("dtype.gguf", &bytes);
    let error = entensor("run", &model, &["-p", "a"]).failed(1);
    assert!(error.contains("output_norm.weight") && error.contains("200"), "{error}");
}

#[test]
fn prompts_that_do_not_fit_are_refused() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    for subcommand in ["run", "logits"] {
        let error = entensor(subcommand, &model, &["-p", ""]).failed(2);
        assert!(error.contains("empty") && error.contains("-p"), "{error}");
        let error = entensor(subcommand, &model, &["-p", &"x".repeat(97)]).failed(1);
        assert!(error.contains("97 tokens do not fit") && error.contains("larger context"), "{error}");
        let error = entensor(subcommand, &model, &["-p", "0123456789", "--ctx", "9"]).failed(1);
        assert!(error.contains("10 tokens do not fit"), "{error}");
    }
    assert_eq!(entensor("run", &model, &["-p", &"x".repeat(96), "-n", "1"]).code, 0);
}

#[test]
fn backends_that_do_not_exist_are_refused_with_those_that_do() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    for (spec, word) in [
        ("gpu9", "oracle"),
        ("cpu:threads=0", "from 1 to"),
        ("cpu:threads=many", "from 1 to"),
        ("cpu:speed=9", "threads"),
        ("cpu:", "cpu:threads=2"),
        ("", "cpu:threads=2"),
    ] {
        for (subcommand, args) in [("run", &["-p", "a", "--backend", spec][..]), ("plan", &["--backend", spec])] {
            let error = entensor(subcommand, &model, args).failed(2);
            assert!(error.contains(word), "{spec}: {error}");
        }
    }
    let error = entensor("run", &model, &["-p", "a", "--backend", "cpu", "--backend", "CPU"]).failed(2);
    assert!(error.contains("two backends are named"), "{error}");
    for args in [&["-t", "0"][..], &["-t", "1,,2"], &["-t", "two"], &["-r", "0"], &["-p", "0", "-n", "0"]] {
        entensor("bench", &model, args).failed(2);
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    for (option, value) in [
        ("--temp", "-1"),
        ("--temp", "nan"),
        ("--temp", "inf"),
        ("--temp", "hot"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-p", "-0.5"),
        ("--top-k", "-1"),
        ("--min-p", "1.5"),
        ("--min-p", "-0.1"),
        ("--tail-free", "0"),
        ("--tail-free", "2"),
        ("--repeat-penalty", "0"),
        ("--repeat-penalty", "nan"),
        ("--repeat-last-n", "-1"),
        ("--stop", ""),
        ("--seed", "x"),
        ("-n", "-3"),
        ("--ctx", "0"),
        ("--ctx", "3000000000"),
    ] {
        entensor("run", &model, &["-p", "a", option, value]).failed(2);
    }
    // A cache of some terabytes: an error of the backend, and no crash.
    let ran = entensor("run", &model, &["-p", "a", "-n", "1", "--ctx", "2147483647"]);
    assert!(matches!(ran.code, 0 | 1), "{ran:?}");
}

#[test]
fn files_that_are_no_models_are_refused() {
    let files = Files::new();
    let text = files.write("text.gguf", "Once upon a time, in a land far away");
    let empty = files.write("empty.gguf", "");
    let absent = files.path().join("absent.gguf");
    for (subcommand, args) in [
        ("run", &["-p", "a"][..]),
        ("logits", &["-p", "a"]),
        ("tokenize", &["-p", "a"]),
        ("inspect", &[]),
        ("bench", &[]),
        ("plan", &[]),
        ("explain", &[]),
    ] {
        let error = entensor(subcommand, files.path(), args).failed(2);
        assert!(error.contains("directory"), "{error}");
        let error = entensor(subcommand, &absent, args).failed(2);
        assert!(error.contains("absent.gguf") && error.contains("check"), "{error}");
        for path in [&text, &empty] {
            let ran = entensor(subcommand, path, args);
            assert!(matches!(ran.code, 1 | 2) && ran.stdout.is_empty(), "{ran:?}");
        }
    }
    // Bytes that are no text.
    let noise = files.write("noise.graph", [0xff, 0xfe, 0, 1, 2, 3, 0xff]);
    let error = entensor("plan", &noise, &[]).failed(2);
    assert!(error.contains("neither a GGUF file nor UTF-8 text"), "{error}");
}

#[test]
fn the_null_backend_runs_no_model() {
    let files = Files::new();
    let model = files.write("tiny.gguf", Tiny::default().build());
    for subcommand in ["run", "logits"] {
        let error = entensor(subcommand, &model, &["-p", "a", "--backend", "null"]).failed(2);
        assert!(error.contains("computes nothing"), "{error}");
    }
}

/// What a file says and the network leaves out would be a wrong result that nobody sees.
#[test]
fn nothing_in_a_file_is_ignored() {
    let files = Files::new();
    let logits = |name: &str, tiny: &Tiny| {
        let model = files.write(name, tiny.build());
        let out = entensor("logits", &model, &["-p", "abc", "--json"]);
        assert_eq!(out.code, 0, "{name}");
        out.stdout
    };
    let plain = logits("plain.gguf", &Tiny::default());
    for (i, (name, length)) in
        [("attn_q.bias", 64), ("attn_k.bias", 32), ("attn_v.bias", 32), ("attn_output.bias", 64), ("ffn_down.bias", 64)]
            .into_iter()
            .enumerate()
    {
        let name: &'static str = format!("blk.0.{name}").leak();
        let biased = logits(&format!("bias{i}.gguf"), &Tiny { extra: Some((name, length)), ..Tiny::default() });
        assert_ne!(biased, plain, "{name}");
    }
    assert_ne!(logits("scaled.gguf", &Tiny { rope_factor: Some(4.0), ..Tiny::default() }), plain);
    assert_eq!(logits("unscaled.gguf", &Tiny { rope_factor: Some(1.0), ..Tiny::default() }), plain);
    let odd = files.write("odd.gguf", Tiny { extra: Some(("blk.9.attn_q.weight", 64)), ..Tiny::default() }.build());
    let error = entensor("run", &odd, &["-p", "a"]).failed(1);
    assert!(error.contains("blk.9.attn_q.weight") && error.contains("does not use"), "{error}");
}

#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let files = Files::new();
    let mut bytes = Tiny::default().build();
    let header = GgufHeader::parse(&bytes).expect("a valid file");
    let norm = header.tensors.get("output_norm.weight").expect("every model has one");
    let at = usize::try_from(norm.offset_bytes).expect("a small file");
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let model = files.write("nan.gguf", bytes);
    for args in [&["-p", "a", "--json"][..], &["-p", "abc"]] {
        for subcommand in ["run", "logits"] {
            let error = entensor(subcommand, &model, args).failed(1);
            assert!(error.contains("not finite"), "{subcommand}: {error}");
        }
    }
}
