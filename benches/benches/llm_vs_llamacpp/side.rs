//! An engine as the bench sees it: a process that answers lines.

use std::{
    error::Error,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::wishes::Run;

/// An engine with a model and a conversation.
pub(crate) struct Side {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// What it says of itself.
    pub(crate) about: String,
    depth: usize,
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    /// The most that was resident at any time, mapped files included.
    pub(crate) peak: u64,
    /// What is resident now and is no file's: the process's own.
    pub(crate) own: u64,
}

/// What came of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) time: Duration,
    /// The likeliest next token.
    pub(crate) likeliest: u64,
}

impl Side {
    /// Starts the program and waits until its model is loaded.
    pub(crate) fn start(command: &mut Command) -> Result<Self, Box<dyn Error>> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let to = child.stdin.take().ok_or("no pipe to the engine")?;
        let from = BufReader::new(child.stdout.take().ok_or("no pipe from the engine")?);
        let mut side = Self { child, to, from, about: String::new(), depth: 0 };
        let line = side.line()?;
        side.about = line.strip_prefix("ready ").ok_or_else(|| format!("the engine said `{line}`"))?.to_owned();
        Ok(side)
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(format!("an engine ended by itself: {}", self.child.wait()?).into());
        }
        Ok(line.trim().to_owned())
    }

    fn ask(&mut self, what: &str, tokens: usize) -> Result<Answer, Box<dyn Error>> {
        writeln!(self.to, "{what} {tokens}")?;
        self.to.flush()?;
        let line = self.line()?;
        let (time, likeliest) = line.split_once(' ').ok_or_else(|| format!("the engine said `{line}`"))?;
        Ok(Answer { time: Duration::from_nanos(time.parse()?), likeliest: likeliest.parse()? })
    }

    /// Brings the conversation to where the run begins.
    pub(crate) fn prepare(&mut self, run: Run) -> Result<(), Box<dyn Error>> {
        if run.decode && self.depth != run.depth {
            self.ask("prompt", run.depth)?;
            self.depth = run.depth;
        }
        Ok(())
    }

    /// Does a run that was prepared for.
    pub(crate) fn run(&mut self, run: Run) -> Result<Answer, Box<dyn Error>> {
        if run.decode {
            return self.ask("decode", run.tokens);
        }
        self.depth = run.tokens;
        self.ask("prompt", run.tokens)
    }

    /// Memory of the process; `None` where the system does not tell.
    pub(crate) fn resident(&self) -> Option<Resident> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let bytes = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key))?;
            Some(line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
        };
        Some(Resident { peak: bytes("VmHWM:")?, own: bytes("RssAnon:")? })
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A process that has ended already needs nothing.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
