//! The world that simulated devices share: queues, clock, schedule and log.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    thread::{self, ThreadId},
};

use entensor_components::{Backend, BackendError, QueueKind};

use crate::{
    backend::SimBackend,
    config::SimConfig,
    fault::{Call, Fault, Faults},
    job::{Job, Task, TicketState},
    memory::lock,
    random::Random,
    timeline::{Access, Lane, Outcome, Timeline, TimelineEntry, Work},
};

/// Devices on one virtual clock, run by one seeded schedule. Cloning gives another handle to the same world.
#[derive(Clone)]
pub struct SimWorld(Arc<Mutex<State>>);

pub(crate) struct Queue {
    device: u32,
    kind: QueueKind,
    jobs: VecDeque<Job>,
    /// What the next work waits for.
    waits: Vec<u64>,
    free_ns: u64,
    /// The last ticket that it gave out.
    last: Option<u64>,
    /// Queues of higher rank run earlier, mostly.
    rank: u64,
    /// Work that has run, and of which the host does not know it yet.
    unseen: VecDeque<(u64, Vec<Access>)>,
}

pub(crate) struct DeviceState {
    pub(crate) name: Arc<str>,
    inner: Arc<dyn Backend>,
    pub(crate) faults: Faults,
    pub(crate) lost: Option<String>,
    watchdog_ns: Option<u64>,
}

struct Host {
    thread: ThreadId,
    now_ns: u64,
    /// Whether it has only polled in vain since it last did anything else.
    is_polling: bool,
}

pub(crate) struct State {
    random: Random,
    pub(crate) devices: Vec<DeviceState>,
    queues: Vec<Queue>,
    hosts: Vec<Host>,
    /// By ticket, which count from 1.
    tickets: Vec<TicketState>,
    pub(crate) memories: u64,
    recording: bool,
    log: Vec<TimelineEntry>,
    /// Entries that were taken out of the log.
    taken: usize,
}

impl SimWorld {
    /// An empty world whose schedule is drawn from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            random: Random::new(seed),
            devices: Vec::new(),
            queues: Vec::new(),
            hosts: Vec::new(),
            tickets: Vec::new(),
            memories: 0,
            recording: true,
            log: Vec::new(),
            taken: 0,
        })))
    }

    /// Adds a device.
    #[must_use]
    pub fn device(&self, config: SimConfig) -> Arc<SimBackend> {
        let mut state = self.lock();
        let index = u32::try_from(state.devices.len()).unwrap_or(u32::MAX);
        state.devices.push(DeviceState {
            name: config.name.as_str().into(),
            inner: Arc::clone(&config.inner),
            faults: Faults::default(),
            lost: None,
            watchdog_ns: config.watchdog_ns,
        });
        let compute = state.add_queue(index, QueueKind::Compute);
        let copy = if config.copy_queue { state.add_queue(index, QueueKind::Copy) } else { compute };
        drop(state);
        Arc::new(SimBackend::new(self.clone(), index, (compute, copy), config))
    }

    /// Draws the schedule from another seed from now on.
    pub fn reseed(&self, seed: u64) {
        let mut state = self.lock();
        state.random = Random::new(seed);
        for queue in 0..state.queues.len() {
            state.queues[queue].rank = state.random.next();
        }
    }

    /// Virtual time of the calling thread.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        let mut state = self.lock();
        let host = state.host();
        state.hosts[host as usize].now_ns
    }

    /// How much work waits in queues.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.lock().queues.iter().map(|queue| queue.jobs.len()).sum()
    }

    /// Runs one piece of waiting work; false if there is none.
    pub fn step(&self) -> bool {
        self.lock().run_one()
    }

    /// Whether work is recorded; on from the start. Long runs that nobody checks need less memory without.
    pub fn set_recording(&self, recording: bool) {
        self.lock().recording = recording;
    }

    /// What has been recorded so far. Work that waits in a queue has no times yet.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        Timeline { entries: self.lock().log.clone() }
    }

    /// What has been recorded so far; recording starts anew. To be asked for when nothing waits, or the rest cannot be checked.
    #[must_use]
    pub fn take_timeline(&self) -> Timeline {
        let mut state = self.lock();
        state.taken += state.log.len();
        Timeline { entries: std::mem::take(&mut state.log) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Tells worlds apart.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl State {
    fn add_queue(&mut self, device: u32, kind: QueueKind) -> usize {
        let rank = self.random.next();
        let (jobs, unseen) = (VecDeque::new(), VecDeque::new());
        let queue = Queue { device, kind, jobs, waits: Vec::new(), free_ns: 0, last: None, rank, unseen };
        self.queues.push(queue);
        self.queues.len() - 1
    }

    /// The calling thread's number.
    fn host(&mut self) -> u32 {
        let thread = thread::current().id();
        let found = self.hosts.iter().position(|host| host.thread == thread);
        let index = found.unwrap_or_else(|| {
            self.hosts.push(Host { thread, now_ns: 0, is_polling: false });
            self.hosts.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    fn log(&mut self, entry: impl FnOnce() -> TimelineEntry) -> Option<usize> {
        if !self.recording {
            return None;
        }
        self.log.push(entry());
        Some(self.taken + self.log.len() - 1)
    }

    fn logged(&mut self, entry: Option<usize>) -> Option<&mut Work> {
        match self.log.get_mut(entry?.checked_sub(self.taken)?) {
            Some(TimelineEntry::Work(work)) => Some(work),
            _ => None,
        }
    }

    fn ticket(&mut self, device: u32, after: Option<u64>) -> u64 {
        self.tickets.push(TicketState { device, after, end_ns: 0, cancelled: false, result: None });
        self.tickets.len() as u64
    }

    pub(crate) fn last_ticket(&self) -> u64 {
        self.tickets.len() as u64
    }

    fn state_of(&self, ticket: u64) -> Option<&TicketState> {
        self.tickets.get(usize::try_from(ticket.checked_sub(1)?).ok()?)
    }

    fn is_queued(&self, ticket: u64) -> bool {
        self.state_of(ticket).is_some_and(|state| state.result.is_none())
    }

    /// Whether a device gave this ticket out.
    pub(crate) fn check_ticket(&self, device: u32, ticket: u64) -> Result<(), BackendError> {
        match self.state_of(ticket) {
            Some(state) if state.device == device => Ok(()),
            _ => {
                let backend = Arc::clone(&self.devices[device as usize].name);
                Err(BackendError::UnknownEvent { backend, event: ticket })
            }
        }
    }

    /// Counts a call; the fault that was ordered for it, or that the device is lost.
    pub(crate) fn call(&mut self, device: u32, call: Call) -> Result<(), BackendError> {
        self.alive(device)?;
        match self.devices[device as usize].faults.note(call) {
            None => Ok(()),
            Some(Fault::Fail(error)) => Err(error),
            Some(Fault::Lose) => {
                self.lose(device, format!("it went away at {call:?}"));
                self.alive(device)
            }
        }
    }

    pub(crate) fn alive(&self, device: u32) -> Result<(), BackendError> {
        match &self.devices[device as usize].lost {
            Some(reason) => Err(BackendError::DeviceLost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Nothing of the device runs any more.
    pub(crate) fn lose(&mut self, device: u32, reason: String) {
        let error = BackendError::DeviceLost { reason: reason.clone() };
        self.devices[device as usize].lost.get_or_insert(reason);
        for queue in 0..self.queues.len() {
            if self.queues[queue].device != device {
                continue;
            }
            while let Some(job) = self.queues[queue].jobs.pop_front() {
                self.finish(&job, Err(error.clone()), Outcome::Dropped, 0);
            }
        }
    }

    fn finish(&mut self, job: &Job, result: Result<(), BackendError>, outcome: Outcome, end_ns: u64) {
        let place = usize::try_from(job.ticket - 1).unwrap_or(usize::MAX);
        if let Some(state) = self.tickets.get_mut(place) {
            state.result = Some(result);
            state.end_ns = end_ns;
        }
        if let Some(work) = self.logged(job.entry) {
            (work.start_ns, work.end_ns, work.outcome) = (end_ns.saturating_sub(job.cost_ns), end_ns, outcome);
        }
    }

    pub(crate) fn submit(
        &mut self,
        queue: usize,
        task: Task,
        label: Arc<str>,
        accesses: Vec<Access>,
        cost_ns: u64,
        after: Option<u64>,
    ) -> u64 {
        let host = self.host();
        let (device, kind) = (self.queues[queue].device, self.queues[queue].kind);
        let ticket = self.ticket(device, after);
        let waits = std::mem::take(&mut self.queues[queue].waits);
        let entry = self.log(|| {
            TimelineEntry::Work(Work {
                ticket,
                lane: Lane::Queue(device, kind),
                label,
                waits: waits.clone(),
                host,
                accesses: accesses.clone(),
                start_ns: 0,
                end_ns: 0,
                outcome: Outcome::Queued,
            })
        });
        let submitted_ns = self.hosts[host as usize].now_ns;
        self.hosts[host as usize].is_polling = false;
        self.queues[queue].last = Some(ticket);
        let job = Job { ticket, task, accesses, waits, after, submitted_ns, cost_ns, entry };
        self.queues[queue].jobs.push_back(job);
        ticket
    }

    /// The host does the work itself, now.
    pub(crate) fn run_on_host(
        &mut self,
        device: u32,
        task: &Task,
        label: Arc<str>,
        accesses: Vec<Access>,
        cost_ns: u64,
    ) -> Result<(), BackendError> {
        let host = self.host();
        let start_ns = self.hosts[host as usize].now_ns;
        let ticket = self.ticket(device, None);
        let end_ns = start_ns.saturating_add(cost_ns);
        self.log(|| {
            TimelineEntry::Work(Work {
                ticket,
                lane: Lane::Host(host),
                label,
                waits: Vec::new(),
                host,
                accesses,
                start_ns,
                end_ns,
                outcome: Outcome::Ran,
            })
        });
        self.hosts[host as usize].is_polling = false;
        let inner = Arc::clone(&self.devices[device as usize].inner);
        let result = self.call(device, Call::Run).and_then(|()| task.run(&inner));
        self.hosts[host as usize].now_ns = end_ns;
        let state = self.tickets.last_mut().expect("it was just made");
        (state.end_ns, state.result) = (end_ns, Some(result.clone()));
        result
    }

    /// The next work of a queue waits for this too.
    pub(crate) fn wait_in(&mut self, queue: usize, ticket: u64) {
        if !self.queues[queue].waits.contains(&ticket) {
            self.queues[queue].waits.push(ticket);
        }
    }

    fn is_ready(&self, queue: &Queue) -> bool {
        queue.jobs.front().is_some_and(|job| !job.waits.iter().any(|&wait| self.is_queued(wait)))
    }

    /// Runs the first work of some queue: mostly of the ready one that ranks highest, at times of any.
    pub(crate) fn run_one(&mut self) -> bool {
        let ready: Vec<usize> = (0..self.queues.len()).filter(|&queue| self.is_ready(&self.queues[queue])).collect();
        let first = ready.iter().copied().max_by_key(|&queue| self.queues[queue].rank);
        let Some(mut chosen) = first else { return false };
        if self.random.below(4) == 0 {
            chosen = ready[usize::try_from(self.random.below(ready.len() as u64)).unwrap_or(0)];
        }
        if self.random.below(8) == 0 {
            // What was late is early from now on, or the other way round.
            self.queues[chosen].rank = self.random.next();
        }
        if let Some(job) = self.queues[chosen].jobs.pop_front() {
            self.run(chosen, &job);
        }
        true
    }

    fn run(&mut self, queue: usize, job: &Job) {
        let device = self.queues[queue].device;
        let mut start_ns = self.queues[queue].free_ns.max(job.submitted_ns);
        let mut failed = None;
        for wait in job.waits.iter().chain(&job.after) {
            let Some(state) = self.state_of(*wait) else { continue };
            start_ns = start_ns.max(state.end_ns);
            match &state.result {
                Some(Err(error @ BackendError::DeviceLost { .. })) => failed = Some(error.clone()),
                // A piece goes the way of the piece before it.
                Some(Err(error)) if job.after == Some(*wait) => failed = Some(error.clone()),
                _ => {}
            }
        }
        self.queues[queue].unseen.push_back((job.ticket, job.accesses.clone()));
        let state = self.state_of(job.ticket);
        let cancelled = state.is_some_and(|state| state.cancelled).then_some(BackendError::Cancelled);
        if let Some(error) = cancelled.or(failed) {
            self.finish(job, Err(error), Outcome::Dropped, start_ns);
            self.queues[queue].free_ns = start_ns;
            return;
        }
        let end_ns = start_ns.saturating_add(job.cost_ns);
        if let Err(error) = self.call(device, Call::Run) {
            self.finish(job, Err(error), Outcome::Dropped, start_ns);
            return;
        }
        if self.devices[device as usize].watchdog_ns.is_some_and(|most_ns| job.cost_ns > most_ns)
            && job.task.nodes() > 1
        {
            self.lose(device, format!("a submission took {} ns", job.cost_ns));
            let lost = self.alive(device);
            self.finish(job, lost, Outcome::Dropped, start_ns);
            return;
        }
        let inner = Arc::clone(&self.devices[device as usize].inner);
        let result = job.task.run(&inner);
        self.queues[queue].free_ns = end_ns;
        self.finish(job, result, Outcome::Ran, end_ns);
    }

    /// Runs what there is until a ticket's work is over.
    fn drive(&mut self, ticket: u64) {
        while self.is_queued(ticket) && self.run_one() {}
    }

    /// The calling thread waits for a ticket; what its work came to.
    pub(crate) fn host_wait(&mut self, ticket: u64) -> Result<(), BackendError> {
        self.drive(ticket);
        let host = self.host();
        self.log(|| TimelineEntry::HostWait { host, ticket });
        let Some(state) = self.state_of(ticket) else { return Ok(()) };
        let device = state.device;
        let (end_ns, result) = (state.end_ns, state.result.clone().unwrap_or(Ok(())));
        let cancelled = state.cancelled;
        let now_ns = &mut self.hosts[host as usize].now_ns;
        *now_ns = (*now_ns).max(end_ns);
        for queue in self.queues.iter_mut().filter(|queue| queue.device == device) {
            // Of its own queue all before it is over too.
            if let Some(at) = queue.unseen.iter().position(|(seen, _)| *seen == ticket) {
                queue.unseen.drain(..=at);
            }
        }
        if cancelled && result.is_ok() { Err(BackendError::Cancelled) } else { result }
    }

    /// Whether a ticket's work is over before a time; the calling thread has waited until then, or until the end.
    pub(crate) fn host_wait_until(&mut self, ticket: u64, most_ns: u64) -> Result<bool, BackendError> {
        self.drive(ticket);
        let host = self.host() as usize;
        let deadline_ns = self.hosts[host].now_ns.saturating_add(most_ns);
        if self.state_of(ticket).is_some_and(|state| state.end_ns > deadline_ns) {
            self.hosts[host].now_ns = deadline_ns;
            return Ok(false);
        }
        self.host_wait(ticket).map(|()| true)
    }

    /// Looks at a ticket, and lets a few more things happen if it is not over. That takes no time; but for a thread that does nothing
    /// else than poll, time passes.
    pub(crate) fn poll(&mut self, ticket: u64) -> Result<bool, BackendError> {
        if self.state_of(ticket).is_some_and(|state| state.cancelled) {
            return Err(BackendError::Cancelled);
        }
        for _ in 0..self.random.below(3) {
            if self.is_queued(ticket) {
                self.run_one();
            }
        }
        let host = self.host() as usize;
        let end_ns = self.state_of(ticket).filter(|state| state.result.is_some()).map(|state| state.end_ns);
        let now_ns = self.hosts[host].now_ns;
        if let Some(end_ns) = end_ns
            && self.hosts[host].is_polling
        {
            self.hosts[host].now_ns = now_ns.max(now_ns.midpoint(end_ns) + 1).min(end_ns.max(now_ns));
        }
        if end_ns.is_some_and(|end_ns| end_ns <= self.hosts[host].now_ns) {
            self.hosts[host].is_polling = false;
            return self.host_wait(ticket).map(|()| true);
        }
        self.hosts[host].is_polling = true;
        Ok(false)
    }

    /// Takes work back that has not run, with the pieces before it.
    pub(crate) fn cancel(&mut self, ticket: u64) {
        let mut next = Some(ticket);
        while let Some(ticket) = next {
            let place = usize::try_from(ticket - 1).unwrap_or(usize::MAX);
            let Some(state) = self.tickets.get_mut(place) else { return };
            state.cancelled |= state.result.is_none();
            next = state.after;
        }
    }

    /// Waits for everything in a device's queues.
    pub(crate) fn synchronize(&mut self, device: u32) {
        let of_device = |queue: &&Queue| queue.device == device;
        let last: Vec<u64> = self.queues.iter().filter(of_device).filter_map(|queue| queue.last).collect();
        for ticket in last {
            // What the work failed with is asked for by its ticket.
            let _ = self.host_wait(ticket);
        }
    }

    /// The calling thread waits for all work that touches these bytes: all of it before a write, what writes them before a read.
    pub(crate) fn settle(&mut self, access: &Access) {
        let meets = |other: &Access| {
            other.memory == access.memory
                && (other.write || access.write)
                && other.bytes.start < access.bytes.end
                && access.bytes.start < other.bytes.end
        };
        // The last one of each queue: it is over after all before it.
        let last = |queue: &Queue| {
            let waiting = queue.jobs.iter().map(|job| (job.ticket, &job.accesses));
            let ran = queue.unseen.iter().map(|(ticket, accesses)| (*ticket, accesses));
            let found = waiting.rev().chain(ran.rev()).find(|(_, accesses)| accesses.iter().any(meets));
            found.map(|(ticket, _)| ticket)
        };
        let tickets: Vec<u64> = self.queues.iter().filter_map(last).collect();
        for ticket in tickets {
            let _ = self.host_wait(ticket);
        }
    }

    /// Time between two tickets' ends, if both have run.
    pub(crate) fn elapsed_ns(&self, from: u64, to: u64) -> Option<u64> {
        let end = |ticket| self.state_of(ticket).filter(|state| state.result.is_some()).map(|state| state.end_ns);
        Some(end(to)?.saturating_sub(end(from)?))
    }
}
