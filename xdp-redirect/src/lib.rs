//! What the programs of this crate have in common.
#![no_std]

pub mod packet;
