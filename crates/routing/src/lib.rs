//! Routing for mixtures of experts: one formulation, every router.
//!
//! An MoE layer is defined by two tensors (paper 001 eq. 2): a dispatch tensor says how much of each
//! token goes into each slot of each expert, a combine tensor says how much of each slot's output
//! comes back to each token. [`definition`] writes this out literally. A [`Router`] computes the
//! same without ever building those tensors: it turns tokens into a [`Plan`]. The size of a sparse
//! plan grows with the number of assignments, not with the number of experts.
//!
//! ```text
//! tokens ─ weight ─► logits ─ softmax ─► gates ─ affinity ─► allocation ─► plan ─► experts ─► tokens
//!                       └────────────────► auxiliary losses, statistics
//! ```
//!
//! A router is a product of small types, one file each:
//!
//! | choice | type |
//! |---|---|
//! | how tokens and experts are compared | [`Affinity`] |
//! | who chooses whom | [`Allocation`]: [`TokenChoice`], [`ExpertChoice`], [`Soft`] |
//! | who is served first | [`Order`] |
//! | how much an expert takes | [`Capacity`] |
//! | where combine weights come from | [`CombineWeights`] |
//! | which experts a token may use | [`Pool`], [`Pruning`] |
//! | what is routed together | [`Grouping`] |
//! | who decides | [`Scope`] |
//! | what it costs | [`LossTerm`] |
//!
//! # Axes
//!
//! `B` images, `T` tokens, `D` width, `E` experts, `C` capacity of an expert in a group, `K` choices
//! of a token, `G` groups, `S` tokens of a group, `P` slots of an expert (soft), `M` ensemble members
//! or gates, `A` assignments, `N` rows of the token matrix (`B · M · T`).
//!
//! # Ties
//!
//! Where two values are equal, the lower index wins: the lower expert inside a token, the earlier
//! token inside an expert and inside a priority. Tokens are counted in routing order
//! ([`Groups::order`]), which is the order of their rows unless an ensemble's members alternate.
//!
//! # Gradients
//!
//! Only combine weights and auxiliary losses carry gradient into a router. Choices, slots and masks
//! are plain integers.
//!
//! # Example
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use omma_routing::{Context, Layout, RouterConfig, Seed};
//!
//! let device = Device::flex();
//! let router = RouterConfig::softmax_token_choice(8, 2).init(32, Seed::new(1), &device)?;
//! let layout = Layout::new(4, 16); // four images of sixteen tokens
//! let tokens = Tensor::<2>::random([layout.rows(), 32], Distribution::Normal(0.0, 1.0), &device);
//!
//! let routing = router.route(tokens.clone(), &Context::inference(layout))?;
//! let doubled = routing.plan.apply(tokens, |_expert, rows| rows * 2.0);
//! assert_eq!(doubled.dims(), [64, 32]);
//! assert_eq!(routing.statistics().load.iter().sum::<usize>(), 128); // two experts per token
//! # Ok::<(), omma_routing::RoutingError>(())
//! ```

#![forbid(unsafe_code)]

pub mod affinity;
pub mod allocation;
pub mod definition;
pub mod losses;

mod capacity;
mod config;
mod error;
mod gate;
mod layout;
mod modalities;
mod plan;
mod pool;
mod router;
mod statistics;

pub use affinity::{Affinity, CombineWeights, Sinkhorn, SparseTransport};
pub use allocation::{Allocation, Decisions, ExpertChoice, Order, Soft, SubsetChoice, TokenChoice};
pub use capacity::{Capacity, Rounding};
pub use config::{ROUTERS, RouterConfig};
pub use error::{Result, RoutingError};
pub use gate::GateTable;
pub use layout::{Grouping, Groups, Layout, Place, Scope, Sequences};
pub use losses::{AuxiliaryLosses, Loss, LossTerm};
pub use modalities::ModalityStatistics;
pub use omma_base::Seed;
pub use plan::{Plan, SoftPlan, SparsePlan};
pub use pool::{Callers, Gate, Pool, PruneMode, Pruning};
pub use router::{Context, Router, Routing};
pub use statistics::Statistics;
