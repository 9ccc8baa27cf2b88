//! Integration tests of `omma-base`, one module per topic.

mod cpu_time;
