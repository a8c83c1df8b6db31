//! The `.graph` text.
