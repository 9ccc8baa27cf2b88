//! Integration tests of `omma-data`, one module per topic.

mod pinned;
