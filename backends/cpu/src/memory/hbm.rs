//! High-bandwidth memory through `libmemkind`, which is looked for when a backend wants it.
#![expect(unsafe_code, reason = "calls a C library's allocator, and makes slices of what it gives")]

use std::{ffi::c_void, ptr::NonNull, sync::Arc};

use entensor_components::{BackendError, HOST_ALIGN_BYTES, HostMemory};
use libloading::Library;

/// The names under which the library is installed.
const NAMES: [&str; 2] = ["libmemkind.so.0", "libmemkind.so"];

/// Where it comes from.
const PACKAGE: &str = "libmemkind0 (Debian, Ubuntu) or memkind (Fedora, Arch, SUSE)";

type CheckAvailable = unsafe extern "C" fn() -> i32;
type Allocate = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> i32;
type Free = unsafe extern "C" fn(*mut c_void);

/// The library, and whether this machine has such memory.
pub(crate) struct HighBandwidth {
    is_there: bool,
    allocate: Allocate,
    free: Free,
    /// Keeps the functions loaded.
    _library: Library,
}

impl HighBandwidth {
    /// Loads the library.
    pub(crate) fn load() -> Result<Arc<Self>, BackendError> {
        let missing = |reason: libloading::Error| BackendError::MissingLibrary {
            library: NAMES[0],
            package: PACKAGE,
            reason: reason.to_string(),
        };
        // SAFETY: loading runs what the library does when it is loaded, as linking against it would; the names are those of one library
        // of the system, and whoever can put another in its place can replace the program as well.
        let open = |name| unsafe { Library::new(name) };
        let library = open(NAMES[0]).or_else(|first| open(NAMES[1]).map_err(|_| first)).map_err(missing)?;
        // SAFETY: the signatures are those of `hbwmalloc.h`; the functions are called while the library is loaded only.
        unsafe {
            let available = *library.get::<CheckAvailable>(b"hbw_check_available\0").map_err(missing)?;
            let allocate = *library.get::<Allocate>(b"hbw_posix_memalign\0").map_err(missing)?;
            let free = *library.get::<Free>(b"hbw_free\0").map_err(missing)?;
            Ok(Arc::new(Self { is_there: available() == 0, allocate, free, _library: library }))
        }
    }

    /// Whether this machine has such memory. Where it has none, [`Self::zeroed`] gives ordinary memory.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Zeroed memory.
    pub(crate) fn zeroed(self: &Arc<Self>, size_bytes: u64) -> Result<HostMemory, BackendError> {
        if !self.is_there || size_bytes == 0 {
            return HostMemory::zeroed(size_bytes);
        }
        let out_of_memory = BackendError::OutOfMemory { size_bytes };
        let len = usize::try_from(size_bytes).ok().filter(|&len| isize::try_from(len).is_ok());
        let len = len.ok_or_else(|| out_of_memory.clone())?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the alignment is a power of two and a multiple of a pointer's size; `start` is ours.
        let status = unsafe { (self.allocate)(&raw mut start, HOST_ALIGN_BYTES as usize, len) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| status == 0).ok_or(out_of_memory)?;
        // SAFETY: the allocator gave `len` bytes, and nobody else knows them.
        unsafe { start.write_bytes(0, len) };
        Ok(HostMemory::allocated(Box::new(Allocation { start, len, library: Arc::clone(self) })))
    }
}

/// Bytes of the library's allocator, given back when dropped.
struct Allocation {
    start: NonNull<u8>,
    len: usize,
    library: Arc<HighBandwidth>,
}

// SAFETY: the bytes are owned, and reached through `&self` and `&mut self` only; the allocator may be called from any thread.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl AsRef<[u8]> for Allocation {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the allocation has `len` bytes, initialised when it was made, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Allocation {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the start of an allocation of this library, which is loaded as long as `library` lives.
        unsafe { (self.library.free)(self.start.as_ptr().cast()) };
    }
}
