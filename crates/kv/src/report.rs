//! What a store holds and what it moved.

use serde::Serialize;

/// What a KV head is in the life of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Keeps all audio and is watched.
    Anchor,
    /// Keeps a part and recalls the rest.
    Tidal,
    /// Keeps a part for good.
    Fixed,
    /// Keeps all audio (full cache).
    Whole,
}

impl Role {
    /// The role's name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Anchor => "anchor",
            Self::Tidal => "tidal",
            Self::Fixed => "fixed",
            Self::Whole => "whole",
        }
    }
}

/// Rows of all heads of one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RoleReport {
    /// The role.
    pub role: Role,
    /// KV heads that have it.
    pub heads: u64,
    /// Audio rows on the device.
    pub device_rows: u64,
    /// Audio rows that can be had: on the device or recallable.
    pub reachable_rows: u64,
}

/// What swap plans did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SwapCounters {
    /// Segments recalled, counted per head.
    pub recalled_segments: u64,
    /// Bytes of keys and values recalled.
    pub recalled_bytes: u64,
    /// Segments released, counted per head.
    pub released_segments: u64,
    /// Wanted segments that were on the device already, counted per head.
    pub hits: u64,
    /// Wanted segments that were not recalled because the budget was full, counted per head.
    pub denied: u64,
    /// Recalled segments that left before their time because text needed the room, counted per head.
    pub evicted: u64,
}

/// Bytes and rows of a store at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreReport {
    /// Audio rows on the device, over all layers and KV heads.
    pub audio_rows: u64,
    /// Those of them that the next step's attention reads, as far as is known before its queries.
    pub read_rows: u64,
    /// Text rows (prompt and answer), over all layers and KV heads.
    pub text_rows: u64,
    /// Share of the prompt's audio rows that is on the device, r_GPU (1 without audio).
    pub r_gpu: f64,
    /// Share that attention reads (1 without audio).
    pub r_read: f64,
    /// Share that is on the device or recallable, r_GPU+CPU (1 without audio).
    pub r_gpu_cpu: f64,
    /// Bytes allocated on the device.
    pub device_bytes: u64,
    /// Bytes allocated on the host.
    pub host_bytes: u64,
    /// Rows by role; roles without heads are left out.
    pub roles: Vec<RoleReport>,
    /// What was moved so far.
    pub swaps: SwapCounters,
}
