//! Integration tests of `omma-report`, one module per topic.

mod documents;
