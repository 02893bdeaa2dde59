//! Routes by which activations travel between two devices.
//!
//! | file | route |
//! | --- | --- |
//! | `staged.rs` | through a ring of host memory |
//! | `peer.rs` | the source writes into the destination's slot |
//! | `import.rs` | the destination reads the source's slot |
//! | `slots.rs` | the destination's end of the peer and import routes |

mod import;
mod peer;
mod slots;
mod staged;

use crate::action::{Action, Copy, OtherEnd};
use crate::error::Error;
use crate::message::{ToReceiver, ToSender, TransferId};
use crate::points::Points;
use ragtag_hal::{Point, QueueKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Route of activations across an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Route {
    /// The source device has imported the destination's slots and writes into them.
    Peer,
    /// The destination device has imported the source's slots and reads from them.
    Import,
    /// Copies pass through a bounded ring of pinned host memory that both devices can access.
    HostStaged {
        /// Number of bytes in a chunk. If absent, that of [`Route::HOST_STAGED`].
        #[serde(default = "usual_chunk_bytes")]
        chunk_bytes: u64,
        /// Number of chunks in the ring. If absent, that of [`Route::HOST_STAGED`].
        #[serde(default = "usual_depth")]
        depth: u32,
    },
}

fn usual_chunk_bytes() -> u64 {
    Route::HOST_STAGED.ring().0
}

fn usual_depth() -> u32 {
    Route::HOST_STAGED.ring().1
}

impl Route {
    /// Host-staged route with the default ring. Its chunks are large enough to hide the fixed cost of a copy.
    /// It has four chunks: one leaves the source, another enters the destination, and one waits at each end.
    pub const HOST_STAGED: Route = Route::HostStaged { chunk_bytes: 256 << 10, depth: 4 };
    /// Host-staged route between two GPUs. The host wakes up twice for each chunk, and copies are fast, so
    /// chunks are larger.
    pub const STAGED_BETWEEN_GPUS: Route = Route::HostStaged { chunk_bytes: 2 << 20, depth: 4 };

    /// Returns whether one device must import the slots of the other.
    pub fn shares_memory(&self) -> bool {
        matches!(self, Route::Peer | Route::Import)
    }

    /// Returns the sender's queue that signals the point after which the receiver may read.
    pub fn sending_queue(&self) -> QueueKind {
        if *self == Route::Import { QueueKind::Compute } else { QueueKind::Download }
    }

    /// Returns the short name of the route, for users.
    pub fn name(&self) -> &'static str {
        match self {
            Route::Peer => "peer",
            Route::Import => "import",
            Route::HostStaged { .. } => "staged",
        }
    }

    /// Returns the number of bytes of pinned host memory that the route needs.
    pub fn staging_bytes(&self) -> u64 {
        let (chunk_bytes, depth) = self.ring();
        chunk_bytes.saturating_mul(u64::from(depth))
    }

    /// Returns the chunk size in bytes and the depth of the route's ring. Both are 0 for a route without a
    /// ring.
    pub const fn ring(&self) -> (u64, u32) {
        match *self {
            Route::HostStaged { chunk_bytes, depth } => (chunk_bytes, depth),
            Route::Peer | Route::Import => (0, 0),
        }
    }

    /// Returns both ends of the route. `ring` locates its ring among the rings of the edge. `slots` is the
    /// number of slots of the receiving stage.
    fn ends(&self, ring: RingStart, slots: u32) -> (Box<dyn SourceEnd>, Box<dyn DestinationEnd>) {
        match *self {
            Route::HostStaged { chunk_bytes, depth } => {
                let ring = staged::Ring { start: ring, chunk_bytes, depth };
                (Box::new(staged::Out::new(ring)), Box::new(staged::In::new(ring)))
            }
            Route::Peer => (Box::new(peer::Out::new(slots)), Box::new(slots::In::written())),
            Route::Import => (Box::<import::Out>::default(), Box::new(slots::In::readable())),
        }
    }
}

/// A route, and the transfers for which it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizedRoute {
    /// Maximum size of a transfer over this route, in bytes. If absent, there is no maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_bytes: Option<u64>,
    /// The route.
    pub route: Route,
}

/// Routes of an edge. A transfer takes the first route that allows its size. A device may refuse to share
/// memory. The pipeline then removes the routes that need it, and transfers take the next route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Routes(pub Vec<SizedRoute>);

impl From<Route> for Routes {
    fn from(route: Route) -> Self {
        Self(vec![SizedRoute { up_to_bytes: None, route }])
    }
}

impl Routes {
    /// Returns a list with one route, followed by the host-staged route if a device may refuse the first.
    pub fn or_staged(route: Route) -> Self {
        Self::or(route, Route::HOST_STAGED)
    }

    /// Returns a list with one route, followed by `staged` if a device may refuse the first.
    pub fn or(route: Route, staged: Route) -> Self {
        let fallback = route.shares_memory().then_some(staged);
        let sized = |route| SizedRoute { up_to_bytes: None, route };
        Self([route].into_iter().chain(fallback).map(sized).collect())
    }

    /// Removes a route. Returns whether every transfer still has a route.
    pub fn remove(&mut self, route: Route) -> bool {
        self.0.retain(|sized| sized.route != route);
        self.check().is_ok()
    }

    /// Checks that every transfer has a usable route.
    ///
    /// # Errors
    /// [`Error::EmptyRing`], [`Error::Sizes`] or [`Error::Repeated`].
    pub fn check(&self) -> Result<(), Error> {
        let limit = |sized: &SizedRoute| sized.up_to_bytes.unwrap_or(u64::MAX);
        // Two routes may have the same limit if a device may refuse the first of them.
        let ascend = self.0.windows(2).all(|pair| match pair[0].route.shares_memory() {
            true => limit(&pair[0]) <= limit(&pair[1]),
            false => limit(&pair[0]) < limit(&pair[1]),
        });
        if !ascend || self.0.last().is_none_or(|last| last.up_to_bytes.is_some()) {
            return Err(Error::Sizes);
        }
        // Messages of these routes do not name the route.
        let is_repeated = |route: Route| self.iter().filter(|other| *other == route).count() > 1;
        if is_repeated(Route::Peer) || is_repeated(Route::Import) {
            return Err(Error::Repeated);
        }
        let empty = |route: &Route| {
            matches!(route, Route::HostStaged { chunk_bytes: 0, .. } | Route::HostStaged { depth: 0, .. })
        };
        if self.iter().any(|route| empty(&route)) { Err(Error::EmptyRing) } else { Ok(()) }
    }

    /// Returns the routes in order.
    pub fn iter(&self) -> impl Iterator<Item = Route> {
        self.0.iter().map(|sized| sized.route)
    }

    /// Returns the index of the route of a transfer of `bytes` bytes.
    pub fn of(&self, bytes: u64) -> usize {
        let allows = |sized: &SizedRoute| sized.up_to_bytes.is_none_or(|most| bytes <= most);
        self.0.iter().position(allows).unwrap_or(0)
    }

    /// Returns the route of a copy. `is_outgoing` states whether the source copies. Returns `None` if the
    /// list has no such route.
    pub fn of_copy(&self, copy: &Copy, is_outgoing: bool) -> Option<Route> {
        let is_peer = match copy.other {
            OtherEnd::Ring { start } => {
                let mut end = 0;
                return self.iter().find(|route| {
                    end += route.staging_bytes();
                    start < end
                });
            }
            OtherEnd::Slot(_) => is_outgoing,
            OtherEnd::None => !is_outgoing,
        };
        let wanted = if is_peer { Route::Peer } else { Route::Import };
        self.iter().find(|route| *route == wanted)
    }

    /// Returns the number of bytes of pinned host memory that the rings of all routes need together.
    pub fn staging_bytes(&self) -> u64 {
        self.iter().fold(0, |sum, route| sum.saturating_add(route.staging_bytes()))
    }

    /// Returns the number of places in the rings of all routes.
    pub fn places(&self) -> u32 {
        self.iter().fold(0, |sum, route| sum.saturating_add(route.ring().1))
    }

    /// Returns both ends of each route.
    pub(crate) fn ends(&self, slots: u32) -> Vec<(Box<dyn SourceEnd>, Box<dyn DestinationEnd>)> {
        let mut ring = RingStart::default();
        let ends = self.iter().map(|route| {
            let ends = route.ends(ring, slots);
            ring.byte += route.staging_bytes();
            ring.place += route.ring().1;
            ends
        });
        ends.collect()
    }
}

/// Routes of an edge, and which of them other routes have replaced.
#[derive(Debug)]
pub(crate) struct RoutesInUse {
    all: Routes,
    replaced: Vec<bool>,
}

impl RoutesInUse {
    pub(crate) fn new(routes: &Routes) -> Self {
        Self { all: routes.clone(), replaced: vec![false; routes.0.len()] }
    }

    /// Returns the route with an index.
    pub(crate) fn at(&self, index: usize) -> Route {
        self.all.0[index].route
    }

    /// Returns the index of a route.
    pub(crate) fn find(&self, route: Route) -> Option<usize> {
        self.all.iter().position(|other| other == route)
    }

    /// Returns the index of the route that a transfer of `bytes` bytes takes now.
    pub(crate) fn of(&self, bytes: u64) -> usize {
        self.usable(bytes).next().unwrap_or_else(|| self.all.of(bytes))
    }

    /// Returns the index of the first usable route for `bytes` bytes other than the one at `without`.
    pub(crate) fn other_than(&self, without: usize, bytes: u64) -> Option<usize> {
        self.usable(bytes).find(|index| *index != without)
    }

    fn usable(&self, bytes: u64) -> impl Iterator<Item = usize> {
        let allows = move |sized: &SizedRoute| sized.up_to_bytes.is_none_or(|most| bytes <= most);
        let all = self.all.0.iter().zip(&self.replaced).enumerate();
        all.filter(move |(_, (sized, replaced))| allows(sized) && !**replaced).map(|(index, _)| index)
    }

    /// Records that another route replaces the one at `index`.
    pub(crate) fn replace(&mut self, index: usize) {
        self.replaced[index] = true;
    }

    /// Returns the routes that no other route has replaced.
    pub(crate) fn left(&self) -> Routes {
        let kept = self.all.0.iter().zip(&self.replaced).filter(|(_, replaced)| !**replaced);
        Routes(kept.map(|(route, _)| *route).collect())
    }
}

/// Location of a route's ring in the host memory of its edge.
#[derive(Clone, Copy, Debug, Default)]
struct RingStart {
    /// First byte.
    byte: u64,
    /// Number of the first place.
    place: u32,
}

/// A transfer that the source has not requested completely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    pub(crate) transfer: TransferId,
    /// Slot of the sender's stage.
    pub(crate) slot: u32,
    pub(crate) bytes: u64,
    /// Number of bytes that are requested so far.
    pub(crate) sent: u64,
    /// Point after which the bytes can be read.
    pub(crate) after: Point,
    /// Slot of the receiver's stage, if the transfer is sent again.
    pub(crate) again: Option<u32>,
}

/// A transfer that the destination has not requested completely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) transfer: TransferId,
    pub(crate) bytes: u64,
    /// Number of bytes that are requested so far.
    pub(crate) received: u64,
    /// Slot of the receiver's stage.
    pub(crate) slot: u32,
}

/// The requests of one step of an end of an edge.
pub(crate) struct Requests<'a, M> {
    /// Points of the end's queue.
    pub(crate) points: &'a mut Points,
    pub(crate) actions: &'a mut Vec<Action<M>>,
}

impl<M> Requests<'_, M> {
    /// Requests the copy that `copy` returns for the next point. Returns this point.
    fn copy(&mut self, copy: impl FnOnce(Point) -> Copy) -> Point {
        let signal = self.points.allot();
        self.actions.push(Action::Copy(copy(signal)));
        signal
    }

    fn send(&mut self, message: M) {
        self.actions.push(Action::Message(message));
    }

    fn done(&mut self, transfer: TransferId, slot: u32, at: Point) {
        self.actions.push(Action::Done { transfer, slot, at });
    }
}

/// The source's end of a route.
pub(crate) trait SourceEnd: fmt::Debug + Send {
    /// Requests as much of the edge's oldest transfer as possible. Returns whether nothing is left to
    /// request.
    fn advance(&mut self, transfer: &mut Outgoing, requests: &mut Requests<'_, ToReceiver>) -> bool;

    /// Handles a message if it belongs to this route. Returns whether it does.
    fn receive(&mut self, message: ToSender, requests: &mut Requests<'_, ToReceiver>) -> Result<bool, Error>;

    /// Records that a transfer takes another route.
    fn skip(&mut self) {}

    /// Returns whether transfers that were requested completely are not done yet. The next transfer may take
    /// another route only if this is false, so that transfers are done in order.
    fn is_undone(&self) -> bool {
        false
    }

    /// Returns whether the destination has returned everything that the route has lent to it.
    fn is_idle(&self) -> bool {
        !self.is_undone()
    }
}

/// The destination's end of a route.
pub(crate) trait DestinationEnd: fmt::Debug + Send {
    /// Stores a message if it belongs to this route. Returns whether it does.
    fn receive(&mut self, message: ToReceiver) -> Result<bool, Error>;

    /// Returns the transfer of the oldest stored message that waits for [`DestinationEnd::advance`].
    fn held(&self) -> Option<TransferId>;

    /// Requests as much of the edge's oldest transfer as possible. Returns whether nothing is left to
    /// request.
    fn advance(
        &mut self,
        transfer: &mut Incoming,
        requests: &mut Requests<'_, ToSender>,
    ) -> Result<bool, Error>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_ring_takes_one_mebibyte_of_host_memory() {
        assert_eq!(Route::HOST_STAGED.staging_bytes(), 1 << 20);
        assert_eq!(Route::Peer.staging_bytes(), 0);
    }

    #[test]
    fn transfers_take_the_first_route_that_allows_their_size() {
        let sized = |up_to_bytes, route| SizedRoute { up_to_bytes, route };
        let routes = Routes(vec![sized(Some(64), Route::Import), sized(None, Route::HOST_STAGED)]);
        assert_eq!(routes.check(), Ok(()));
        assert_eq!([1, 64, 65, u64::MAX].map(|bytes| routes.of(bytes)), [0, 0, 1, 1]);
        assert_eq!((routes.places(), routes.staging_bytes()), (4, 1 << 20));
    }

    #[test]
    fn a_refused_route_is_replaced_by_the_next() {
        let sized = |up_to_bytes, route| SizedRoute { up_to_bytes, route };
        let mut routes = Routes::or_staged(Route::Import);
        assert_eq!((routes.check(), routes.of(1), routes.staging_bytes()), (Ok(()), 0, 1 << 20));
        assert!(routes.remove(Route::Import));
        assert_eq!(
            (routes, Routes::or_staged(Route::HOST_STAGED)),
            (Route::HOST_STAGED.into(), Route::HOST_STAGED.into())
        );
        let mut large = Routes(vec![sized(Some(64), Route::HOST_STAGED), sized(None, Route::Peer)]);
        assert!(!large.remove(Route::Peer), "large transfers have no other route");
    }

    #[test]
    fn lists_without_a_route_for_every_size_are_refused() {
        let list = |limits: &[Option<u64>]| {
            let sized = |&up_to_bytes: &Option<u64>| SizedRoute { up_to_bytes, route: Route::HOST_STAGED };
            Routes(limits.iter().map(sized).collect()).check()
        };
        assert_eq!(list(&[Some(1), Some(2), None]), Ok(()));
        for limits in [&[][..], &[Some(9)], &[None, None], &[None, Some(1)], &[Some(2), Some(2), None]] {
            assert_eq!(list(limits), Err(Error::Sizes), "{limits:?}");
        }
        let fallback = |first| {
            let sized = |route| SizedRoute { up_to_bytes: None, route };
            Routes([first, Route::HOST_STAGED].map(sized).into()).check()
        };
        assert_eq!(fallback(Route::Peer), Ok(()));
        assert_eq!(fallback(Route::HOST_STAGED), Err(Error::Sizes), "the second is never used");
        let twice = [Some(1), None].map(|up_to_bytes| SizedRoute { up_to_bytes, route: Route::Peer });
        assert_eq!(Routes(twice.into()).check(), Err(Error::Repeated));
        for (chunk_bytes, depth) in [(0, 1), (1, 0)] {
            let ring = Routes::from(Route::HostStaged { chunk_bytes, depth });
            assert_eq!(ring.check(), Err(Error::EmptyRing));
        }
    }
}
