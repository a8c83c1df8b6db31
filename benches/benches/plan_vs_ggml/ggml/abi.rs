//! The parts of ggml's private `ggml-backend-impl.h` that a backend is made of, as that file has them at
//! `GGML_BACKEND_API_VERSION` 3. Functions that nobody calls here stand as [`Unused`]: they are null.

use std::ffi::{c_char, c_int, c_uint, c_void};

use llama_cpp_sys_2 as sys;

/// The version that these declarations are of.
pub(super) const API_VERSION: c_int = 3;

/// A function that is left out, or that the scheduler never calls.
pub(super) type Unused = Option<unsafe extern "C" fn()>;

type GetName<T> = unsafe extern "C" fn(T) -> *const c_char;
type BufferType = sys::ggml_backend_buffer_type_t;
type Buffer = sys::ggml_backend_buffer_t;
type Device = sys::ggml_backend_dev_t;

#[repr(C)]
pub(super) struct BufferTypeInterface {
    pub(super) get_name: GetName<BufferType>,
    pub(super) alloc_buffer: unsafe extern "C" fn(BufferType, usize) -> Buffer,
    pub(super) alloc_buffer_n: Unused,
    pub(super) get_alignment: unsafe extern "C" fn(BufferType) -> usize,
    pub(super) get_max_size: Option<unsafe extern "C" fn(BufferType) -> usize>,
    pub(super) get_alloc_size: Option<unsafe extern "C" fn(BufferType, *const sys::ggml_tensor) -> usize>,
    pub(super) get_alloc_size_n: Unused,
    pub(super) is_host: Option<unsafe extern "C" fn(BufferType) -> bool>,
}

#[repr(C)]
pub(super) struct BufferTypeObject {
    pub(super) interface: BufferTypeInterface,
    pub(super) device: Device,
    pub(super) context: *mut c_void,
}

#[repr(C)]
pub(super) struct BufferInterface {
    pub(super) free_buffer: Unused,
    pub(super) get_base: Option<unsafe extern "C" fn(Buffer) -> *mut c_void>,
    pub(super) init_tensor: Unused,
    pub(super) memset_tensor: Unused,
    pub(super) set_tensor: Unused,
    pub(super) get_tensor: Unused,
    pub(super) set_tensor_2d: Unused,
    pub(super) get_tensor_2d: Unused,
    pub(super) cpy_tensor: Unused,
    pub(super) clear: Unused,
    pub(super) reset: Unused,
}

#[repr(C)]
pub(super) struct BufferObject {
    pub(super) interface: BufferInterface,
    pub(super) buffer_type: BufferType,
    pub(super) context: *mut c_void,
    pub(super) size: usize,
    pub(super) usage: c_uint,
}

#[repr(C)]
pub(super) struct BackendInterface {
    pub(super) get_name: GetName<sys::ggml_backend_t>,
    pub(super) free: Unused,
    pub(super) set_tensor_async: Unused,
    pub(super) get_tensor_async: Unused,
    pub(super) set_tensor_2d_async: Unused,
    pub(super) get_tensor_2d_async: Unused,
    pub(super) cpy_tensor_async: Unused,
    pub(super) synchronize: Unused,
    pub(super) graph_plan_create: Unused,
    pub(super) graph_plan_free: Unused,
    pub(super) graph_plan_update: Unused,
    pub(super) graph_plan_compute: Unused,
    pub(super) graph_compute: Unused,
    pub(super) event_record: Unused,
    pub(super) event_wait: Unused,
    pub(super) graph_optimize: Unused,
}

#[repr(C)]
pub(super) struct BackendObject {
    pub(super) guid: *mut c_void,
    pub(super) interface: BackendInterface,
    pub(super) device: Device,
    pub(super) context: *mut c_void,
}

#[repr(C)]
pub(super) struct DeviceInterface {
    pub(super) get_name: GetName<Device>,
    pub(super) get_description: Unused,
    pub(super) get_memory: Unused,
    pub(super) get_type: unsafe extern "C" fn(Device) -> sys::ggml_backend_dev_type,
    pub(super) get_props: Unused,
    pub(super) init_backend: Unused,
    pub(super) get_buffer_type: Unused,
    pub(super) get_host_buffer_type: Unused,
    pub(super) buffer_from_host_ptr: Unused,
    pub(super) supports_op: unsafe extern "C" fn(Device, *const sys::ggml_tensor) -> bool,
    pub(super) supports_buft: unsafe extern "C" fn(Device, BufferType) -> bool,
    pub(super) offload_op: Unused,
    pub(super) event_new: Unused,
    pub(super) event_free: Unused,
    pub(super) event_synchronize: Unused,
}

#[repr(C)]
pub(super) struct DeviceObject {
    pub(super) interface: DeviceInterface,
    pub(super) registry: sys::ggml_backend_reg_t,
    pub(super) context: *mut c_void,
}

unsafe extern "C" {
    /// Exported by ggml, declared in the same private file.
    pub(super) fn ggml_backend_buffer_init(
        buffer_type: BufferType,
        interface: BufferInterface,
        context: *mut c_void,
        size: usize,
    ) -> Buffer;
}

/// Says why these declarations are not those of the ggml that is linked. Beside the version it compares the fields that stand
/// behind each table of functions with what ggml's own accessors say, for ggml's own processor backend: a table that grew or
/// shrank moves them.
pub(super) fn mismatch() -> Option<String> {
    // SAFETY: the processor's registry entry, device and buffer type are static and initialized by these calls; a registry
    // entry begins with its version in every version. The other fields are read only after the version was found equal, so
    // that the declarations describe them.
    unsafe {
        let registry = sys::ggml_backend_cpu_reg();
        let version = *registry.cast::<c_int>();
        if version != API_VERSION {
            return Some(format!("ggml's backend API has version {version}, this bench knows version {API_VERSION}"));
        }
        let moved = |what: &str| Some(format!("ggml's {what} has another layout than this bench declares"));
        let buffer_type = sys::ggml_backend_cpu_buffer_type();
        let object = &*buffer_type.cast::<BufferTypeObject>();
        if object.device != sys::ggml_backend_buft_get_device(buffer_type)
            || (object.interface.get_name)(buffer_type) != sys::ggml_backend_buft_name(buffer_type)
            || (object.interface.get_alignment)(buffer_type) != sys::ggml_backend_buft_get_alignment(buffer_type)
        {
            return moved("buffer type");
        }
        let buffer = sys::ggml_backend_buft_alloc_buffer(buffer_type, 64);
        if buffer.is_null() {
            return Some("ggml cannot allocate 64 bytes".into());
        }
        let object = &*buffer.cast::<BufferObject>();
        let fits = object.buffer_type == buffer_type
            && object.size == sys::ggml_backend_buffer_get_size(buffer)
            && object.usage == sys::ggml_backend_buffer_get_usage(buffer)
            && object.interface.get_base.is_some_and(|base| base(buffer) == sys::ggml_backend_buffer_get_base(buffer));
        sys::ggml_backend_buffer_free(buffer);
        if !fits {
            return moved("buffer");
        }
        let backend = sys::ggml_backend_cpu_init();
        if backend.is_null() {
            return Some("ggml's processor backend does not start".into());
        }
        let object = &*backend.cast::<BackendObject>();
        let device = sys::ggml_backend_get_device(backend);
        let fits = object.device == device && (object.interface.get_name)(backend) == sys::ggml_backend_name(backend);
        sys::ggml_backend_free(backend);
        if !fits {
            return moved("backend");
        }
        let object = &*device.cast::<DeviceObject>();
        let fits = object.registry == sys::ggml_backend_dev_backend_reg(device)
            && (object.interface.get_name)(device) == sys::ggml_backend_dev_name(device)
            && (object.interface.get_type)(device) == sys::ggml_backend_dev_type(device)
            && (object.interface.supports_buft)(device, buffer_type)
                == sys::ggml_backend_dev_supports_buft(device, buffer_type);
        if fits { None } else { moved("device") }
    }
}
