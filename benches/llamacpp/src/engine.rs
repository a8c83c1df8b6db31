//! A model and a conversation of llama.cpp, as its own bench sets them up.
#![expect(unsafe_code, reason = "llama.cpp is C; this file is the seam to it")]

use std::ffi::{CStr, CString, c_char, c_void};

use llama_cpp_sys_2 as sys;

/// Tokens that are given at once, and of these, computed at once: llama.cpp's own defaults.
const BATCH_TOKENS: u32 = 2048;
const MICRO_BATCH_TOKENS: u32 = 512;

/// llama.cpp's version, what it was built for, and whose threads it uses.
pub(crate) fn about() -> String {
    let text = |chars: *const c_char| {
        // SAFETY: what ggml returns as text is static and ends with a zero.
        unsafe { CStr::from_ptr(chars) }.to_string_lossy().trim().to_owned()
    };
    // SAFETY: these calls have no conditions.
    let (version, commit, system) =
        unsafe { (text(sys::ggml_version()), text(sys::ggml_commit()), text(sys::llama_print_system_info())) };
    let threads = if cfg!(feature = "openmp") { "OpenMP" } else { "its own threads" };
    format!("llama.cpp with ggml {version} ({commit}), {threads}: {}", system.replace('\n', " "))
}

/// A loaded model with an empty conversation.
pub(crate) struct Llama {
    model: *mut sys::llama_model,
    context: *mut sys::llama_context,
    threads: *mut sys::ggml_threadpool,
    vocabulary: usize,
    tokens: Vec<sys::llama_token>,
}

impl Llama {
    /// Maps the file, with weights in private layouts where that is faster, and flash attention where it can be had.
    pub(crate) fn new(path: &str, threads: i32, context: u32) -> Result<Self, String> {
        unsafe extern "C" fn nothing(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}
        let name = CString::new(path).map_err(|e| e.to_string())?;
        // SAFETY: the callback takes anything; parameters are the library's own but for the fields set here; pointers that are null
        // are not used any further; everything is freed in `drop`, in reverse order.
        unsafe {
            sys::llama_log_set(Some(nothing), std::ptr::null_mut());
            sys::llama_backend_init();
            let model = sys::llama_model_load_from_file(name.as_ptr(), sys::llama_model_default_params());
            if model.is_null() {
                return Err(format!("llama.cpp does not load {path}"));
            }
            let mut params = sys::llama_context_default_params();
            params.n_ctx = context;
            params.n_batch = BATCH_TOKENS;
            params.n_ubatch = MICRO_BATCH_TOKENS;
            params.n_threads = threads;
            params.n_threads_batch = threads;
            params.no_perf = true;
            let context = sys::llama_init_from_model(model, params);
            if context.is_null() {
                return Err("llama.cpp makes no context".into());
            }
            // Threads that stay: without them ggml starts new ones for each graph.
            let mut params = sys::ggml_threadpool_params_default(threads);
            let threads = sys::ggml_threadpool_new(&raw mut params);
            if threads.is_null() {
                return Err("ggml starts no threads".into());
            }
            sys::llama_attach_threadpool(context, threads, threads);
            let vocabulary = sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model));
            let vocabulary = usize::try_from(vocabulary).unwrap_or(0).max(1);
            Ok(Self { model, context, threads, vocabulary, tokens: Vec::new() })
        }
    }

    /// Feeds the tokens of these positions: any ids, spread over the vocabulary, the same that Entensor gets. The logits of the last
    /// are there when it comes back.
    pub(crate) fn feed(&mut self, position: usize, count: usize) -> Result<(), String> {
        let id = |i: usize| u32::try_from(i).unwrap_or(0).wrapping_mul(2_654_435_761) as usize % self.vocabulary;
        self.tokens.clear();
        self.tokens.extend((position..position + count).map(|i| i32::try_from(id(i)).unwrap_or(0)));
        for piece in self.tokens.chunks_mut(BATCH_TOKENS as usize) {
            let length = i32::try_from(piece.len()).unwrap_or(0);
            // SAFETY: the context exists; the batch's tokens live during the call. Positions go on from what is there.
            let failed = unsafe {
                let batch = sys::llama_batch_get_one(piece.as_mut_ptr(), length);
                let failed = sys::llama_decode(self.context, batch);
                sys::llama_synchronize(self.context);
                failed
            };
            if failed != 0 {
                return Err(format!("llama_decode answers {failed}"));
            }
        }
        Ok(())
    }

    /// Forgets tokens from this position on.
    pub(crate) fn truncate(&mut self, position: usize) {
        let position = i32::try_from(position).unwrap_or(0);
        // SAFETY: the context exists.
        unsafe { sys::llama_memory_seq_rm(sys::llama_get_memory(self.context), 0, position, -1) };
    }

    /// The likeliest token after the last one fed.
    pub(crate) fn likeliest(&self) -> usize {
        // SAFETY: a token was fed with logits wanted, so there is a row of them, or null.
        let logits = unsafe {
            let row = sys::llama_get_logits_ith(self.context, -1);
            if row.is_null() { &[][..] } else { std::slice::from_raw_parts(row, self.vocabulary) }
        };
        (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap_or(0)
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        // SAFETY: nobody else has these; the context goes before its threads and its model.
        unsafe {
            sys::llama_free(self.context);
            sys::ggml_threadpool_free(self.threads);
            sys::llama_model_free(self.model);
        }
    }
}
