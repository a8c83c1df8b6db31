//! Sets of tensors whose memory is allocated in one call.

use std::{borrow::BorrowMut, sync::Arc};

use bevy_ecs::prelude::*;
use entensor_components::{
    BackendError, BackendIndex, BufferBundle, DType, DeviceBuffer, SetLayout, TensorDesc, Usage,
};

use crate::{
    engine::{BufferId, Engine, TensorId},
    error::EngineError,
    memory::packed,
};

/// A tensor that is to get memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, fastest axis first.
    pub dims: &'a [u64],
}

/// Where a set of tensors is to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetPlace<'a> {
    /// The backend that makes the memory.
    pub backend: BackendIndex,
    /// Which of its buffer types; `None` for its default.
    pub buffer_type: Option<&'a str>,
    /// What the memory is used for.
    pub usage: Usage,
}

/// Tensors whose memory was allocated in one call.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSet {
    /// The tensors, in the order in which they were asked for.
    pub tensors: Vec<TensorId>,
    /// Their buffers: several where one would have been larger than the backend's largest. No tensor is torn.
    pub buffers: Vec<BufferId>,
}

impl<W: BorrowMut<World>> Engine<W> {
    /// Allocates zeroed memory for a set of tensors, sized, aligned and padded as the backend wants it, in as few buffers as its largest allows.
    /// All or nothing. Blocks while memory is allocated.
    ///
    /// # Errors
    /// A shape that cannot exist; [`BackendError::BufferTooLarge`] with the tensor that exceeds the largest buffer by itself; what the backend
    /// reports.
    ///
    /// ```
    /// use entensor::{DType, Engine, SetPlace, TensorRequest, Usage};
    ///
    /// let mut engine = Engine::builder().backend("cpu:threads=1").build()?;
    /// let place = SetPlace { backend: engine.host(), buffer_type: None, usage: Usage::Any };
    /// let request = |name, dims| TensorRequest { name, dtype: DType::F32, dims };
    /// let set = engine.tensor_set("state", place, &[request("keys", &[64, 8]), request("values", &[8, 64])])?;
    /// engine.write_tensor(&set.tensors[0], &[1.0_f32; 512])?;
    /// assert_eq!(set.buffers.len(), 1);
    /// # Ok::<(), entensor::EngineError>(())
    /// ```
    pub fn tensor_set(
        &mut self,
        name: &str,
        place: SetPlace<'_>,
        requests: &[TensorRequest<'_>],
    ) -> Result<TensorSet, EngineError> {
        let backend = self.backend(place.backend)?;
        let fail = |source| EngineError::Backend { what: name.into(), source };
        // A buffer of no bytes finds the type, or says which there are.
        let create = |size_bytes| match place.buffer_type {
            None => DeviceBuffer::create(&backend, size_bytes, place.usage),
            Some(buffer_type) => DeviceBuffer::create_of(&backend, buffer_type, size_bytes, place.usage),
        };
        let info = create(0).map_err(fail)?.buffer_type().clone();
        let mut descs = Vec::with_capacity(requests.len());
        for request in requests {
            descs.push(packed(&request.name.into(), request.dtype, request.dims)?);
        }
        let sizes: Vec<u64> = descs.iter().map(|desc| backend.allocation_bytes_of(&info, desc)).collect();
        let layout = SetLayout::new(sizes.iter().copied(), info.align_bytes, info.max_buffer_bytes);
        let layout = layout.map_err(|index| EngineError::Backend {
            what: requests[index].name.into(),
            source: BackendError::BufferTooLarge { size_bytes: sizes[index], max_bytes: info.max_buffer_bytes },
        })?;
        let buffers: Vec<Arc<DeviceBuffer>> =
            layout.buffer_bytes.iter().map(|&bytes| create(bytes)).collect::<Result<_, _>>().map_err(fail)?;
        for ((request, desc), (&(buffer, offset_bytes), &size_bytes)) in
            requests.iter().zip(&descs).zip(layout.places.iter().zip(&sizes))
        {
            let ready = buffers[buffer].init_tensor(offset_bytes, desc, size_bytes);
            ready.map_err(|source| EngineError::Backend { what: request.name.into(), source })?;
        }
        // Nothing can fail from here on.
        let name_of = |index: usize| if buffers.len() == 1 { name.to_owned() } else { format!("{name}#{index}") };
        let names: Vec<String> = (0..buffers.len()).map(name_of).collect();
        let spawn = |(name, buffer): (String, Arc<DeviceBuffer>)| {
            BufferId(self.world_mut().spawn(BufferBundle::new(name, place.usage, buffer)).id())
        };
        let buffers: Vec<BufferId> = names.into_iter().zip(buffers).map(spawn).collect();
        let tensors = requests.iter().zip(&descs).zip(&layout.places).map(
            |((request, &desc), &(buffer, offset_bytes)): ((&TensorRequest<'_>, &TensorDesc), _)| {
                self.spawn_in(request.name.into(), desc, buffers[buffer], offset_bytes)
            },
        );
        let tensors = tensors.collect();
        Ok(TensorSet { tensors, buffers })
    }
}
