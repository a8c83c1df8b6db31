//! Devices that ggml's scheduler takes for real: they support every op, and their buffers are addresses without memory, which
//! nothing reads as long as nothing is computed.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use entensor::{Backend, components::Capabilities};
use llama_cpp_sys_2 as sys;

use super::abi;

/// A kind of buffer.
struct MockMemory {
    name: CString,
    capabilities: Capabilities,
    opaque: bool,
}

/// A device.
struct MockDevice {
    name: CString,
    index: usize,
    capabilities: Capabilities,
    is_host: bool,
}

/// Devices and buffer types in the order of the backends they stand for. What ggml is given points into these boxes, so they
/// live as long as the schedulers that use them: see [`super::Machine`].
pub(super) struct Mocks {
    // The addresses of these are in the objects below.
    #[expect(clippy::vec_box, reason = "their addresses must not change")]
    memories: Vec<Box<MockMemory>>,
    #[expect(clippy::vec_box, reason = "their addresses must not change")]
    devices: Vec<Box<MockDevice>>,
    #[expect(clippy::vec_box, reason = "their addresses must not change")]
    types: Vec<Box<abi::BufferTypeObject>>,
    #[expect(clippy::vec_box, reason = "their addresses must not change")]
    device_objects: Vec<Box<abi::DeviceObject>>,
    #[expect(clippy::vec_box, reason = "their addresses must not change")]
    backends: Vec<Box<abi::BackendObject>>,
    /// Of each backend, its place in `types`; then of each, that of its opaque buffers.
    type_of: Vec<usize>,
}

impl Mocks {
    /// One device for each backend. Backends of one buffer type and memory share their buffers, as in our plans.
    pub(super) fn new(backends: &[Arc<dyn Backend>]) -> Self {
        let mut mocks = Self {
            memories: Vec::new(),
            devices: Vec::new(),
            types: Vec::new(),
            device_objects: Vec::new(),
            backends: Vec::new(),
            type_of: Vec::new(),
        };
        for opaque in [false, true] {
            for backend in backends {
                let place = mocks.type_place(backend, opaque);
                mocks.type_of.push(place);
            }
        }
        for (index, backend) in backends.iter().enumerate() {
            mocks.push_backend(index, backend, index + 1 == backends.len());
        }
        mocks
    }

    fn type_place(&mut self, backend: &Arc<dyn Backend>, opaque: bool) -> usize {
        let own = backend.capabilities();
        let same = |m: &mut Box<MockMemory>| {
            m.capabilities.buffer_type == own.buffer_type && m.capabilities.memory == own.memory && m.opaque == opaque
        };
        if let Some(place) = self.memories.iter_mut().position(same) {
            let shared = &mut self.memories[place].capabilities;
            shared.align_bytes = shared.align_bytes.max(own.align_bytes);
            shared.pad_bytes = shared.pad_bytes.max(own.pad_bytes);
            shared.max_buffer_bytes = shared.max_buffer_bytes.min(own.max_buffer_bytes);
            return place;
        }
        let memory = Box::new(MockMemory { name: c_string(&own.buffer_type), capabilities: own.clone(), opaque });
        let object = abi::BufferTypeObject {
            interface: abi::BufferTypeInterface {
                get_name: type_name,
                alloc_buffer,
                alloc_buffer_n: None,
                get_alignment: alignment,
                get_max_size: Some(max_size),
                get_alloc_size: Some(alloc_size),
                get_alloc_size_n: None,
                is_host: Some(is_host),
            },
            device: ptr::null_mut(),
            context: ptr::from_ref(&*memory).cast_mut().cast(),
        };
        self.memories.push(memory);
        self.types.push(Box::new(object));
        self.types.len() - 1
    }

    fn push_backend(&mut self, index: usize, backend: &Arc<dyn Backend>, is_host: bool) {
        let name = c_string(backend.name());
        let device = Box::new(MockDevice { name, index, capabilities: backend.capabilities().clone(), is_host });
        let context: *mut c_void = ptr::from_ref(&*device).cast_mut().cast();
        let mut device_object = Box::new(abi::DeviceObject {
            interface: abi::DeviceInterface {
                get_name: device_name,
                get_description: None,
                get_memory: None,
                get_type: device_type,
                get_props: None,
                init_backend: None,
                get_buffer_type: None,
                get_host_buffer_type: None,
                buffer_from_host_ptr: None,
                supports_op,
                supports_buft: supports_type,
                offload_op: None,
                event_new: None,
                event_free: None,
                event_synchronize: None,
            },
            registry: ptr::null_mut(),
            context,
        });
        let object = abi::BackendObject {
            guid: ptr::null_mut(),
            interface: abi::BackendInterface {
                get_name: backend_name,
                free: None,
                set_tensor_async: None,
                get_tensor_async: None,
                set_tensor_2d_async: None,
                get_tensor_2d_async: None,
                cpy_tensor_async: None,
                synchronize: None,
                graph_plan_create: None,
                graph_plan_free: None,
                graph_plan_update: None,
                graph_plan_compute: None,
                graph_compute: None,
                event_record: None,
                event_wait: None,
                graph_optimize: None,
            },
            device: ptr::from_mut(&mut *device_object).cast(),
            context,
        };
        let place = self.type_of[index];
        self.types[place].device = object.device;
        self.devices.push(device);
        self.device_objects.push(device_object);
        self.backends.push(Box::new(object));
    }

    pub(super) fn backend(&mut self, index: usize) -> sys::ggml_backend_t {
        ptr::from_mut(&mut *self.backends[index]).cast()
    }

    /// The buffer type of a backend, or that of its buffers whose layout is private.
    pub(super) fn buffer_type(&mut self, index: usize, opaque: bool) -> sys::ggml_backend_buffer_type_t {
        let place = self.type_of[if opaque { self.backends.len() + index } else { index }];
        ptr::from_mut(&mut *self.types[place]).cast()
    }
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "_")).unwrap_or_default()
}

/// The mock behind a buffer type.
///
/// # Safety
/// It is one of [`Mocks`] that still exist.
unsafe fn memory_of<'a>(buffer_type: sys::ggml_backend_buffer_type_t) -> &'a MockMemory {
    // SAFETY: the object and the box that its context points to live in the same `Mocks`.
    unsafe { &*(*buffer_type.cast::<abi::BufferTypeObject>()).context.cast::<MockMemory>() }
}

/// The mock behind a device.
///
/// # Safety
/// It is one of [`Mocks`] that still exist.
unsafe fn device_of<'a>(device: sys::ggml_backend_dev_t) -> &'a MockDevice {
    // SAFETY: the object and the box that its context points to live in the same `Mocks`.
    unsafe { &*(*device.cast::<abi::DeviceObject>()).context.cast::<MockDevice>() }
}

fn as_size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

unsafe extern "C" fn type_name(buffer_type: sys::ggml_backend_buffer_type_t) -> *const c_char {
    // SAFETY: ggml hands back what it was given.
    let name: &CStr = unsafe { &memory_of(buffer_type).name };
    name.as_ptr()
}

unsafe extern "C" fn alignment(buffer_type: sys::ggml_backend_buffer_type_t) -> usize {
    // SAFETY: ggml hands back what it was given.
    as_size(unsafe { memory_of(buffer_type) }.capabilities.align_bytes.max(1))
}

unsafe extern "C" fn max_size(buffer_type: sys::ggml_backend_buffer_type_t) -> usize {
    // SAFETY: ggml hands back what it was given.
    as_size(unsafe { memory_of(buffer_type) }.capabilities.max_buffer_bytes)
}

unsafe extern "C" fn alloc_size(
    buffer_type: sys::ggml_backend_buffer_type_t,
    tensor: *const sys::ggml_tensor,
) -> usize {
    // SAFETY: ggml hands back what it was given, and a tensor of its own.
    let (bytes, pad) = unsafe { (sys::ggml_nbytes(tensor), memory_of(buffer_type).capabilities.pad_bytes) };
    bytes.next_multiple_of(as_size(pad.max(1)))
}

unsafe extern "C" fn is_host(buffer_type: sys::ggml_backend_buffer_type_t) -> bool {
    // SAFETY: ggml hands back what it was given.
    unsafe { memory_of(buffer_type) }.capabilities.memory.is_host()
}

/// Where the next buffer begins: an address that no real memory has, and no other buffer.
static NEXT_ADDRESS: AtomicUsize = AtomicUsize::new(1 << 52);

unsafe extern "C" fn alloc_buffer(
    buffer_type: sys::ggml_backend_buffer_type_t,
    size: usize,
) -> sys::ggml_backend_buffer_t {
    const PAGE: usize = 1 << 21;
    let base = NEXT_ADDRESS.fetch_add(size.next_multiple_of(PAGE) + PAGE, Ordering::Relaxed);
    let interface = abi::BufferInterface {
        free_buffer: None,
        get_base: Some(buffer_base),
        init_tensor: None,
        memset_tensor: None,
        set_tensor: None,
        get_tensor: None,
        set_tensor_2d: None,
        get_tensor_2d: None,
        cpy_tensor: None,
        clear: None,
        reset: None,
    };
    // SAFETY: the layout was compared with ggml's. The address is only ever compared and added to, and there is nothing to free.
    unsafe { abi::ggml_backend_buffer_init(buffer_type, interface, ptr::without_provenance_mut(base), size) }
}

unsafe extern "C" fn buffer_base(buffer: sys::ggml_backend_buffer_t) -> *mut c_void {
    // SAFETY: a buffer of `alloc_buffer`, whose context is its address.
    unsafe { (*buffer.cast::<abi::BufferObject>()).context }
}

unsafe extern "C" fn backend_name(backend: sys::ggml_backend_t) -> *const c_char {
    // SAFETY: ggml hands back what it was given.
    unsafe { device_name((*backend.cast::<abi::BackendObject>()).device) }
}

unsafe extern "C" fn device_name(device: sys::ggml_backend_dev_t) -> *const c_char {
    // SAFETY: ggml hands back what it was given.
    let name: &CStr = unsafe { &device_of(device).name };
    name.as_ptr()
}

unsafe extern "C" fn device_type(device: sys::ggml_backend_dev_t) -> sys::ggml_backend_dev_type {
    // SAFETY: ggml hands back what it was given.
    let is_host = unsafe { device_of(device) }.is_host;
    if is_host { sys::GGML_BACKEND_DEVICE_TYPE_CPU } else { sys::GGML_BACKEND_DEVICE_TYPE_GPU }
}

/// Every op; where a tensor says in `extra` on which backend it must be (counted from one), only that.
unsafe extern "C" fn supports_op(device: sys::ggml_backend_dev_t, op: *const sys::ggml_tensor) -> bool {
    // SAFETY: ggml hands back what it was given, and a tensor of its own.
    let (wanted, index) = unsafe { ((*op).extra.addr(), device_of(device).index) };
    wanted == 0 || wanted == index + 1
}

unsafe extern "C" fn supports_type(
    device: sys::ggml_backend_dev_t,
    buffer_type: sys::ggml_backend_buffer_type_t,
) -> bool {
    // SAFETY: ggml hands back what it was given.
    let (device, memory) = unsafe { (device_of(device), memory_of(buffer_type)) };
    device.capabilities.can_use(&memory.capabilities.memory, memory.opaque, &memory.capabilities.buffer_type)
}
