//! The backend: calls become work in queues.

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, atomic::Ordering},
    time::Duration,
};

use entensor_components::{
    Backend, BackendError, BufferKey, Capabilities, ImportedBytes, MemoryHandle, MemoryKind, MemoryReport, OpDesc,
    PreparedSplit, QueueKind, Readback, Sameness, SplitView, Support, TensorDesc, Ticket, Usage,
};
use slotmap::SlotMap;

use crate::{
    config::SimConfig,
    fault::{Call, Fault},
    job::Task,
    memory::{SimMemory, Used, is_read_only, lock, memory_id, size_bytes},
    split::SimSplit,
    timeline::Access,
    world::{SimWorld, State},
};

/// What a device's splits need of it.
pub(crate) struct Device {
    pub(crate) world: SimWorld,
    pub(crate) index: u32,
    pub(crate) compute: usize,
    copy: usize,
    pub(crate) config: SimConfig,
}

/// A simulated device.
pub struct SimBackend {
    device: Arc<Device>,
    buffers: Mutex<SlotMap<BufferKey, Arc<SimMemory>>>,
    used: Arc<Used>,
}

impl Device {
    /// Counts a call; the world, unless the call fails.
    pub(crate) fn call(&self, call: Call) -> Result<MutexGuard<'_, State>, BackendError> {
        let mut state = self.world.lock();
        state.call(self.index, call)?;
        Ok(state)
    }

    /// Whether the device may use these bytes.
    pub(crate) fn check_memory(
        &self,
        memory: &MemoryHandle,
        write: bool,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(), BackendError> {
        let reads = &self.config.capabilities.reads;
        let is_usable = match memory.downcast_ref::<SimMemory>() {
            Some(sim) => sim.world == self.world.id() && (sim.device == self.index || reads.contains(&sim.kind)),
            None => memory.as_host().is_some() && reads.iter().any(MemoryKind::is_host),
        };
        if !is_usable {
            return Err(BackendError::ForeignMemory);
        }
        in_bounds(memory, offset_bytes, len_bytes)?;
        if write && is_read_only(memory) { Err(BackendError::ReadOnly) } else { Ok(()) }
    }

    /// Makes a task of the copy queue, or does it at once on a synchronous device.
    fn enqueue(
        &self,
        state: &mut State,
        task: Task,
        label: &str,
        accesses: Vec<Access>,
    ) -> Result<Ticket, BackendError> {
        let bytes = accesses.iter().map(|a| a.bytes.end - a.bytes.start).max().unwrap_or(0);
        let cost_ns = self.config.copy.cost_ns(0, bytes);
        if self.config.capabilities.asynchronous {
            return Ok(Ticket::Pending(state.submit(self.copy, task, label.into(), accesses, cost_ns, None)));
        }
        state.run_on_host(self.index, &task, label.into(), accesses, cost_ns).map(|()| Ticket::Done)
    }

    fn queue(&self, queue: QueueKind) -> usize {
        match queue {
            QueueKind::Compute => self.compute,
            QueueKind::Copy => self.copy,
        }
    }
}

fn in_bounds(memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64) -> Result<(), BackendError> {
    let size_bytes = size_bytes(memory);
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(BackendError::OutOfBounds { offset_bytes, len_bytes, size_bytes }),
    }
}

/// What a copy of these bytes touches: nothing if there are none.
fn touched(memory: &MemoryHandle, offset_bytes: u64, len_bytes: u64, write: bool) -> Vec<Access> {
    let memory = memory_id(memory).filter(|_| len_bytes > 0);
    memory.map(|memory| Access { memory, bytes: offset_bytes..offset_bytes + len_bytes, write }).into_iter().collect()
}

impl SimBackend {
    pub(crate) fn new(world: SimWorld, index: u32, (compute, copy): (usize, usize), config: SimConfig) -> Self {
        let device = Arc::new(Device { world, index, compute, copy, config });
        Self { device, buffers: Mutex::default(), used: Arc::default() }
    }

    /// Its number in timelines.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.device.index
    }

    /// The world it is in.
    #[must_use]
    pub fn world(&self) -> &SimWorld {
        &self.device.world
    }

    /// Lets `passing` calls of a kind pass (of any kind for `None`); then the fault strikes, once.
    pub fn fail(&self, call: Option<Call>, passing: u64, fault: Fault) {
        self.device.world.lock().devices[self.device.index as usize].faults.set(call, passing, fault);
    }

    /// No fault strikes any more. A lost device stays lost.
    pub fn clear_fault(&self) {
        self.device.world.lock().devices[self.device.index as usize].faults.clear();
    }

    /// Calls of a kind so far, or of all kinds.
    #[must_use]
    pub fn calls(&self, call: Option<Call>) -> u64 {
        self.device.world.lock().devices[self.device.index as usize].faults.count(call)
    }

    /// Loses the device now: everything queued is dropped, and every call fails from now on.
    pub fn lose(&self, reason: impl Into<String>) {
        self.device.world.lock().lose(self.device.index, reason.into());
    }

    /// Whether the device is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.device.world.lock().devices[self.device.index as usize].lost.is_some()
    }

    fn insert(
        &self,
        state: &mut State,
        key: BufferKey,
        size_bytes: u64,
        read_only: bool,
    ) -> Result<BufferKey, BackendError> {
        let id = state.memories;
        state.memories += 1;
        let device = &self.device;
        let kind = device.config.capabilities.memory.clone();
        let inner = (Arc::clone(&device.config.inner), key);
        let world = device.world.id();
        let memory = SimMemory::adopt(id, device.index, world, kind, size_bytes, read_only, inner, &self.used)?;
        Ok(lock(&self.buffers).insert(Arc::new(memory)))
    }
}

impl Backend for SimBackend {
    fn name(&self) -> &str {
        &self.device.config.name
    }

    fn capabilities(&self) -> &Capabilities {
        &self.device.config.capabilities
    }

    fn support(&self, op: &OpDesc<'_>) -> Support {
        self.device.config.inner.support(op)
    }

    /// Its clock and its queues change no bit, so what it promises is what the backend behind it does.
    fn sameness(&self) -> Sameness {
        self.device.config.inner.sameness()
    }

    fn create_buffer(&self, size_bytes: u64, usage: Usage) -> Result<BufferKey, BackendError> {
        let mut state = self.device.call(Call::Create)?;
        let max_bytes = self.capabilities().max_buffer_bytes;
        if size_bytes > max_bytes {
            return Err(BackendError::BufferTooLarge { size_bytes, max_bytes });
        }
        let used_bytes = self.used.now_bytes.load(Ordering::Relaxed);
        if used_bytes.checked_add(size_bytes).is_none_or(|sum| sum > self.device.config.memory_bytes) {
            return Err(BackendError::OutOfMemory { size_bytes });
        }
        let key = self.device.config.inner.create_buffer(size_bytes, usage)?;
        self.insert(&mut state, key, size_bytes, false)
    }

    fn import_host(&self, bytes: Arc<dyn ImportedBytes>) -> Result<BufferKey, BackendError> {
        let mut state = self.device.call(Call::Import)?;
        if !self.capabilities().imports_host {
            return Err(BackendError::Unsupported { ability: "use host memory in place" });
        }
        let size_bytes = (*bytes).as_ref().len() as u64;
        let key = self.device.config.inner.import_host(bytes)?;
        self.insert(&mut state, key, size_bytes, true)
    }

    fn destroy_buffer(&self, key: BufferKey) -> Result<(), BackendError> {
        // Its bytes stay until the last work that uses them is over.
        let memory = lock(&self.buffers).remove(key);
        memory.map(drop).ok_or(BackendError::StaleBuffer)
    }

    fn memory(&self, key: BufferKey) -> Result<MemoryHandle, BackendError> {
        let buffers = lock(&self.buffers);
        buffers.get(key).map(|memory| MemoryHandle::new(Arc::clone(memory))).ok_or(BackendError::StaleBuffer)
    }

    fn write(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<(), BackendError> {
        let mut state = self.device.call(Call::Write)?;
        self.device.check_memory(memory, true, offset_bytes, bytes.len() as u64)?;
        let accesses = touched(memory, offset_bytes, bytes.len() as u64, true);
        accesses.iter().for_each(|access| state.settle(access));
        let task = Task::Write { memory: memory.clone(), offset_bytes, bytes: bytes.to_vec() };
        match self.device.enqueue(&mut state, task, "write", accesses)? {
            Ticket::Done => Ok(()),
            Ticket::Pending(ticket) => state.host_wait(ticket),
        }
    }

    fn read(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        let mut state = self.device.call(Call::Read)?;
        self.device.check_memory(memory, false, offset_bytes, bytes.len() as u64)?;
        let accesses = touched(memory, offset_bytes, bytes.len() as u64, false);
        accesses.iter().for_each(|access| state.settle(access));
        let into = Readback::new(bytes.len() as u64)?;
        let task = Task::Read { memory: memory.clone(), offset_bytes, into: into.clone() };
        if let Ticket::Pending(ticket) = self.device.enqueue(&mut state, task, "read", accesses)? {
            state.host_wait(ticket)?;
        }
        into.with(|read| bytes.copy_from_slice(read));
        Ok(())
    }

    fn prepare(&self, split: &dyn SplitView) -> Result<Box<dyn PreparedSplit>, BackendError> {
        drop(self.device.call(Call::Prepare)?);
        Ok(Box::new(SimSplit::prepare(&self.device, split)?))
    }

    fn allocation_bytes(&self, desc: &TensorDesc) -> u64 {
        let (size_bytes, pad_bytes) = (desc.size_bytes(), self.capabilities().pad_bytes.max(1));
        size_bytes.checked_next_multiple_of(pad_bytes).unwrap_or(u64::MAX)
    }

    fn record(&self) -> Result<u64, BackendError> {
        self.record_on(QueueKind::Compute)
    }

    fn wait(&self, of: &dyn Backend, event: u64) -> Result<(), BackendError> {
        self.wait_on(QueueKind::Compute, of, event)
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        let mut state = self.device.call(Call::Synchronize)?;
        state.synchronize(self.device.index);
        state.alive(self.device.index)
    }

    fn memory_report(&self) -> MemoryReport {
        let (total_bytes, ours_bytes) = (self.device.config.memory_bytes, self.used.now_bytes.load(Ordering::Relaxed));
        let known = (total_bytes < u64::MAX).then_some(total_bytes);
        MemoryReport {
            total_bytes: known,
            free_bytes: known.map(|total| total.saturating_sub(ours_bytes)),
            ours_bytes,
            peak_bytes: self.used.peak_bytes.load(Ordering::Relaxed),
            ..MemoryReport::default()
        }
    }

    fn poll(&self, ticket: Ticket) -> Result<bool, BackendError> {
        let mut state = self.device.call(Call::Poll)?;
        let Ticket::Pending(ticket) = ticket else { return Ok(true) };
        state.check_ticket(self.device.index, ticket)?;
        let done = state.poll(ticket);
        state.alive(self.device.index)?;
        done
    }

    fn wait_for(&self, ticket: Ticket, timeout: Option<Duration>) -> Result<bool, BackendError> {
        let mut state = self.device.call(Call::Poll)?;
        let Ticket::Pending(ticket) = ticket else { return Ok(true) };
        state.check_ticket(self.device.index, ticket)?;
        let most_ns = timeout.map_or(u64::MAX, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let done = state.host_wait_until(ticket, most_ns);
        state.alive(self.device.index)?;
        done
    }

    fn cancel(&self, ticket: Ticket) -> Result<(), BackendError> {
        let mut state = self.device.call(Call::Poll)?;
        let Ticket::Pending(ticket) = ticket else { return Ok(()) };
        state.check_ticket(self.device.index, ticket)?;
        state.cancel(ticket);
        Ok(())
    }

    fn elapsed(&self, from: u64, to: u64) -> Result<Option<Duration>, BackendError> {
        let state = self.device.call(Call::Poll)?;
        state.check_ticket(self.device.index, from)?;
        state.check_ticket(self.device.index, to)?;
        Ok(state.elapsed_ns(from, to).map(Duration::from_nanos))
    }

    fn has_copy_queue(&self) -> bool {
        self.device.config.copy_queue && self.capabilities().asynchronous
    }

    fn record_on(&self, queue: QueueKind) -> Result<u64, BackendError> {
        let mut state = self.device.call(Call::Record)?;
        if !self.capabilities().asynchronous {
            // Whatever was submitted is done already.
            state.run_on_host(self.device.index, &Task::Marker, "record".into(), Vec::new(), 0)?;
            return Ok(state.last_ticket());
        }
        Ok(state.submit(self.device.queue(queue), Task::Marker, "record".into(), Vec::new(), 0, None))
    }

    fn wait_on(&self, queue: QueueKind, of: &dyn Backend, event: u64) -> Result<(), BackendError> {
        let other = of.as_any().and_then(<dyn Any>::downcast_ref::<Self>);
        let Some(other) = other.filter(|other| other.world().id() == self.world().id()) else {
            drop(self.device.call(Call::Wait)?);
            return of.wait_for(Ticket::Pending(event), None).map(drop);
        };
        let mut state = self.device.call(Call::Wait)?;
        state.check_ticket(other.device.index, event)?;
        state.alive(other.device.index)?;
        if self.capabilities().asynchronous {
            state.wait_in(self.device.queue(queue), event);
            return Ok(());
        }
        let waited = state.host_wait(event);
        state.alive(self.device.index)?;
        match waited {
            Err(error @ BackendError::DeviceLost { .. }) => Err(error),
            // What the work failed with is asked for by its ticket.
            _ => Ok(()),
        }
    }

    fn write_async(&self, memory: &MemoryHandle, offset_bytes: u64, bytes: &[u8]) -> Result<Ticket, BackendError> {
        let mut state = self.device.call(Call::Write)?;
        self.device.check_memory(memory, true, offset_bytes, bytes.len() as u64)?;
        let accesses = touched(memory, offset_bytes, bytes.len() as u64, true);
        let task = Task::Write { memory: memory.clone(), offset_bytes, bytes: bytes.to_vec() };
        self.device.enqueue(&mut state, task, "write", accesses)
    }

    fn read_async(&self, memory: &MemoryHandle, offset_bytes: u64, into: &Readback) -> Result<Ticket, BackendError> {
        let mut state = self.device.call(Call::Read)?;
        let len_bytes = into.len_bytes();
        self.device.check_memory(memory, false, offset_bytes, len_bytes)?;
        let accesses = touched(memory, offset_bytes, len_bytes, false);
        let task = Task::Read { memory: memory.clone(), offset_bytes, into: into.clone() };
        self.device.enqueue(&mut state, task, "read", accesses)
    }

    fn copy_from(
        &self,
        to: &MemoryHandle,
        to_offset_bytes: u64,
        of: &dyn Backend,
        from: &MemoryHandle,
        from_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<Ticket, BackendError> {
        let mut state = self.device.call(Call::Copy)?;
        self.device.check_memory(to, true, to_offset_bytes, len_bytes)?;
        let source = of.as_any().and_then(<dyn Any>::downcast_ref::<Self>);
        let source = source.filter(|source| source.world().id() == self.world().id());
        match source {
            Some(source) => {
                state.alive(source.device.index)?;
                source.device.check_memory(from, false, from_offset_bytes, len_bytes)?;
            }
            None if from.as_host().is_some() => in_bounds(from, from_offset_bytes, len_bytes)?,
            // Not of this world, and not on the host: its backend reads it, and the bytes go on from there.
            None => {
                drop(state);
                let staging = Readback::new(len_bytes)?;
                staging.with(|bytes| of.read(from, from_offset_bytes, bytes))?;
                return staging.with(|bytes| self.write_async(to, to_offset_bytes, bytes));
            }
        }
        let mut accesses = touched(from, from_offset_bytes, len_bytes, false);
        accesses.extend(touched(to, to_offset_bytes, len_bytes, true));
        let task = Task::Copy { to: to.clone(), to_offset_bytes, from: from.clone(), from_offset_bytes, len_bytes };
        self.device.enqueue(&mut state, task, "copy", accesses)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
