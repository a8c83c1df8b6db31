//! `RESULTS.md`: what benches printed, each in a section of its own that the next run replaces.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::{self, BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

const HEAD: &str = "# Results\n\nWritten by the benches themselves when they are given the word `record`; a run replaces its own section. \
                    Figures of different sections\nare of different minutes, often of different machines: compare within one.\n";

/// Whether a bench was given the word `record`. All is done then: it has run once more without the word, and what it printed is in
/// `RESULTS.md`. `features` is what `cargo bench` needs to build it.
///
/// Another process, so that benches print as they like, and are measured as they are without the word.
///
/// # Errors
/// A bench that fails or does not start; a file that cannot be read or written.
pub fn recorded(bench: &str, features: &str) -> io::Result<bool> {
    let words: Vec<String> = env::args().skip(1).collect();
    let (asked, others): (Vec<String>, Vec<String>) = words.into_iter().partition(|word| word == "record");
    if asked.is_empty() {
        return Ok(false);
    }
    let mut child = Command::new(env::current_exe()?).args(&others).stdout(Stdio::piped()).spawn()?;
    let mut output = String::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            println!("{line}");
            output.push_str(&line);
            output.push('\n');
        }
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("nothing is recorded: {bench} ended with {status}")));
    }
    record(bench, &command(bench, features, &others), &laid_out(&output))?;
    Ok(true)
}

/// Output as the page shows it: with tables it is a part of the page as it is; else its lines stay lines.
fn laid_out(output: &str) -> String {
    if output.contains("|---") { output.to_owned() } else { format!("```text\n{}\n```", output.trim_end()) }
}

/// What was asked for, as it is typed. Of files only the names: the page is for other people.
fn command(bench: &str, features: &str, words: &[String]) -> String {
    let mut command = String::from("cargo bench -p entensor-benches");
    for part in [features, "--bench", bench].into_iter().filter(|part| !part.is_empty()) {
        write!(command, " {part}").ok();
    }
    command.push_str(" -- record");
    // Cargo's own.
    for word in words.iter().filter(|word| *word != "--bench") {
        let path = Path::new(word);
        let name = path.file_name().filter(|_| path.exists()).map(|name| name.to_string_lossy());
        write!(command, " {}", name.unwrap_or(word.into())).ok();
    }
    command
}

/// Puts a bench's output into `RESULTS.md`, in place of what it said before, with the machine, the command and the date.
fn record(bench: &str, command: &str, output: &str) -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("RESULTS.md");
    let old = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => HEAD.to_owned(),
        other => other?,
    };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let facts = format!("{}, {}\n\n`{command}`", date(seconds), machine());
    fs::write(&path, replaced(&old, bench, &format!("{facts}\n\n{}", output.trim())))
}

/// The page with the section of this name replaced, or added at the end.
fn replaced(page: &str, name: &str, body: &str) -> String {
    let heading = format!("## {name}\n");
    let (before, after) = match page.find(&heading) {
        Some(start) => {
            let rest = &page[start + heading.len()..];
            let end = rest.find("\n## ").map_or(rest.len(), |at| at + 1);
            (&page[..start], &rest[end..])
        }
        None => (page, ""),
    };
    let mut new = before.trim_end().to_owned();
    write!(new, "\n\n{heading}\n{}\n", body.trim()).ok();
    if !after.is_empty() {
        write!(new, "\n{}\n", after.trim_end()).ok();
    }
    new
}

/// The processor, its caches and memory, as far as the system tells.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let line = |key: &str| info.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(": "));
    let model = line("model name").map_or(std::env::consts::ARCH, |(_, value)| value.trim());
    let flags: Vec<&str> = line("flags").map(|(_, value)| value.split(' ').collect()).unwrap_or_default();
    let known = ["avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni"];
    let simd: Vec<&str> = known.into_iter().filter(|flag| flags.contains(flag)).collect();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cache = read("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let memory = read("/proc/meminfo");
    let kilobytes = memory.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
    format!(
        "{model}, {cores} cores seen, {}, L3 {}, {} GiB of memory, {}",
        simd.join(" "),
        cache.trim(),
        kilobytes >> 20,
        std::env::consts::OS
    )
}

/// The day, in UTC, of so many seconds after 1970.
fn date(seconds: u64) -> String {
    let mut days = seconds / 86_400;
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let days =
            [(0, "1970-01-01"), (68_169_600, "1972-02-29"), (951_868_799, "2000-02-29"), (4_102_444_800, "2100-01-01")];
        for (seconds, day) in days {
            assert_eq!(date(seconds), day);
        }
    }

    #[test]
    fn commands_are_those_of_any_machine() {
        let words = ["--bench", concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"), "no/file"].map(String::from);
        let with_file = "cargo bench -p entensor-benches --bench kernels -- record README.md no/file";
        assert_eq!(command("kernels", "", &words), with_file);
        let with_features = "cargo bench -p entensor-benches --features peers --bench plan_vs_ggml -- record";
        assert_eq!(command("plan_vs_ggml", "--features peers", &[]), with_features);
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(laid_out("  a 1\n  b 2\n\n"), "```text\n  a 1\n  b 2\n```");
        assert_eq!(laid_out("| a |\n|---|\n| 1 |\n"), "| a |\n|---|\n| 1 |\n");
    }

    #[test]
    fn a_run_replaces_its_own_section_only() {
        let page = replaced(&replaced(HEAD, "one", "first"), "two", "second");
        assert!(page.starts_with(HEAD.trim_end()));
        let again = replaced(&page, "one", "third");
        assert!(again.contains("## one\n\nthird\n\n## two\n\nsecond\n") && !again.contains("first"), "{again}");
        assert_eq!(replaced(&again, "one", "first"), page);
        assert_eq!(replaced(&page, "two", "second"), page);
    }
}
