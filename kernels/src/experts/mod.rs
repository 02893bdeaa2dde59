//! Mixtures of experts: a router chooses a few experts for each row, products read the weights of the chosen
//! experts, and a weighted sum combines their results.
//!
//! A *slot* is the place of a chosen expert in its row: 0 for the one with the largest score. An *assignment* is a
//! row and one of its slots. The experts of a matrix follow each other, so the weight rows of expert e start at row
//! e · (rows per expert).

pub mod combine;
pub mod gate;
pub mod matmul;
pub mod route;
