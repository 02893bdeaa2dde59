//! Tests of the pools of cache blocks.

use super::*;
use ragtag_graph::execution::{Eviction, Reserve};

fn pools(blocks: u32, ring: Option<KvRing>, prefixes: Option<Eviction>) -> Pools {
    Pools::new(blocks, ring, KvUse { reserve: Reserve::Grow, prefixes })
}

/// Starts a sequence that fills `count` blocks with the tokens `seed`, `seed + 1`, … and publishes them.
fn fill(pools: &mut Pools, seed: u32, count: u32) -> Holding {
    let tokens = |at: usize| seed + at as u32;
    let end = count * BLOCK_TOKENS as u32;
    let hit = pools.find(Root::Short, (0..end as usize).map(tokens), end as usize + 1);
    let mut holding = pools.start(hit, count).unwrap();
    assert!(pools.grow(&mut holding, count, 0));
    assert!(pools.publish(&mut holding, Root::Short, tokens, end, true));
    holding
}

/// Returns the number of blocks that a sequence with the tokens of [`fill`] finds.
fn found(pools: &Pools, seed: u32, count: u32) -> usize {
    let end = count * BLOCK_TOKENS as u32;
    pools.find(Root::Short, seed..seed + end, end as usize + 1).blocks.len()
}

#[test]
fn blocks_are_lent_once_and_come_back() {
    let mut pools = pools(5, None, None);
    let mut a = pools.start(Hit::default(), 3).unwrap();
    let mut b = pools.start(Hit::default(), 3).unwrap();
    assert!(pools.grow(&mut a, 2, 1) && pools.grow(&mut b, 2, 3));
    // A growing sequence takes further blocks only if they are empty.
    let mut all: Vec<u32> = a.full.iter().chain(b.full.iter()).copied().collect();
    assert_eq!((a.full.len(), b.full.len()), (3, 2));
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4]);
    assert!(!pools.grow(&mut b, 3, 0) && pools.grow(&mut a, 3, 0));
    pools.give(&a, 0);
    assert!(pools.grow(&mut b, 3, 0));
    pools.give(&b, 0);
    assert_eq!((pools.free(), pools.cached()), (5, 0));
}

#[test]
#[should_panic(expected = "of the cache is returned twice")]
fn a_block_that_is_returned_twice_is_a_defect() {
    let mut pools = pools(3, None, None);
    let all = fill(&mut pools, 0, 3);
    pools.give(&all, 48);
    pools.give(&all, 48);
}

#[test]
fn a_prefix_is_found_by_its_content_and_shared() {
    let mut pools = pools(8, None, Some(Eviction::Lru));
    let a = fill(&mut pools, 0, 3);
    // The sequence still runs.
    assert_eq!((found(&pools, 0, 3), found(&pools, 0, 5), found(&pools, 1, 3)), (3, 3, 0));
    let b = fill(&mut pools, 0, 4);
    assert_eq!(&b.full[..3], &a.full[..]);
    assert_eq!((pools.free(), pools.cached()), (4, 0));
    pools.give(&a, 48);
    assert_eq!((pools.free(), pools.cached()), (4, 0));
    pools.give(&b, 64);
    assert_eq!((pools.free(), pools.cached()), (8, 4));
    // The last token of a sequence is never found, and another root has other keys.
    assert_eq!(pools.find(Root::Short, 0..64, 64).positions(), 48);
    assert_eq!(pools.find(Root::Long, 0..64, 65).positions(), 0);
    // The second block alone is not a prefix.
    assert_eq!(found(&pools, 16, 2), 0);
}

/// Runs a sequence with the tokens `seed`, `seed + 1`, … that ends when `entered` of them have entered. Returns the
/// number of positions that it found.
fn run(pools: &mut Pools, seed: u32, entered: u32) -> u32 {
    let hit = pools.find(Root::Short, seed.., entered as usize + 1);
    let (found, count) = (hit.positions(), entered.div_ceil(BLOCK_TOKENS as u32));
    let mut holding = pools.start(hit, count).unwrap();
    assert!(pools.grow(&mut holding, count, 0));
    assert!(pools.publish(&mut holding, Root::Short, |at| seed + at as u32, entered, true));
    holding.end(Root::Short, entered, |first| seed + first..);
    pools.give(&holding, entered);
    found
}

#[test]
fn a_later_sequence_goes_on_within_a_block() {
    let mut pools = pools(4, None, Some(Eviction::Lru));
    assert_eq!([20, 40].map(|entered| run(&mut pools, 0, entered)), [0, 20]);
    assert_eq!((pools.free(), pools.cached()), (4, 3));
    // Behind the tokens that both have in common, but never behind all of its own.
    let found = |pools: &Pools, count| pools.find(Root::Short, (0..36).chain(100..), count).positions();
    assert_eq!([100, 37, 36, 33].map(|count| found(&pools, count)), [36, 36, 35, 32]);
    assert_eq!(pools.find(Root::Long, 0.., 100).positions(), 0);
    // One sequence writes to the block, so no other finds it.
    let hit = pools.find(Root::Short, 0.., 100);
    let holding = pools.start(hit, 3).unwrap();
    assert_eq!((pools.free(), pools.cached(), found(&pools, 100)), (1, 0, 32));
    pools.give(&holding, 0);
    assert_eq!((pools.free(), pools.cached(), found(&pools, 100)), (4, 2, 32));
    // The newest tail replaces another, and goes first if blocks are short.
    assert_eq!([35, 34].map(|entered| run(&mut pools, 0, entered)), [32, 34]);
    assert_eq!((pools.free(), pools.cached()), (4, 3));
    let mut other = pools.start(Hit::default(), 2).unwrap();
    assert!(pools.grow(&mut other, 2, 0));
    assert_eq!((pools.free(), pools.cached(), found(&pools, 100)), (2, 2, 32));
    pools.give(&other, 0);
    let all = fill(&mut pools, 1000, 4);
    assert_eq!((pools.free(), found(&pools, 100)), (0, 0));
    pools.give(&all, 64);
    assert_eq!((pools.free(), pools.cached()), (4, 4));
}

#[test]
fn two_sequences_with_the_same_content_go_on_with_one_block() {
    let mut pools = pools(8, None, Some(Eviction::Lru));
    let none = |pools: &mut Pools| {
        let mut holding = pools.start(Hit::default(), 2).unwrap();
        assert!(pools.grow(&mut holding, 2, 0));
        holding
    };
    let (mut a, mut b, mut c) = (none(&mut pools), none(&mut pools), none(&mut pools));
    let token = |at: usize| at as u32;
    assert!(pools.publish(&mut a, Root::Short, token, 32, true));
    assert!(pools.publish(&mut b, Root::Short, token, 32, true));
    assert_eq!((&a.full, pools.free()), (&b.full, 4));
    // Another path may still write to the blocks of this sequence.
    assert!(!pools.publish(&mut c, Root::Short, token, 32, false));
    assert_ne!(a.full, c.full);
    for holding in [a, b, c] {
        pools.give(&holding, 32);
    }
    assert_eq!((pools.free(), pools.cached()), (8, 2));
}

#[test]
fn a_prefix_loses_its_last_blocks_first_in_the_order_of_the_policy() {
    for (eviction, survivor) in [(Eviction::Lru, 100), (Eviction::Fifo, 200), (Eviction::Lfu, 100)] {
        let mut pools = pools(8, None, Some(eviction));
        for seed in [100, 200, 100, 100] {
            let holding = fill(&mut pools, seed, 3);
            pools.give(&holding, 48);
        }
        assert_eq!((pools.free(), pools.cached()), (8, 6));
        let mut other = pools.start(Hit::default(), 5).unwrap();
        assert!(pools.grow(&mut other, 4, 0));
        let lost = 300 - survivor;
        assert_eq!((found(&pools, lost, 3), found(&pools, survivor, 3)), (1, 3), "{eviction:?}");
        assert!(pools.grow(&mut other, 5, 0));
        assert_eq!((found(&pools, lost, 3), found(&pools, survivor, 3)), (0, 3), "{eviction:?}");
        pools.give(&other, 0);
        assert_eq!((pools.free(), pools.cached()), (8, 3));
    }
}

#[test]
fn without_a_policy_nothing_is_kept() {
    let mut pools = pools(4, None, None);
    let mut holding = pools.start(Hit::default(), 2).unwrap();
    assert!(pools.grow(&mut holding, 2, 0));
    pools.give(&holding, 32);
    assert_eq!((found(&pools, 0, 2), pools.cached()), (0, 0));
}

#[test]
fn a_sequence_takes_blocks_of_both_kinds_or_none() {
    let ring = KvRing { window: 10, blocks: 2, total: 4 };
    let mut pools = pools(9, Some(ring), None);
    let long = pools.start(Hit::default(), 5).unwrap();
    let short = pools.start(Hit::default(), 1).unwrap();
    assert_eq!((long.ring.len(), short.ring.len()), (2, 1));
    // One block of a KV ring is left.
    assert!(pools.start(Hit::default(), 2).is_none());
    assert_eq!((pools.free(), pools.free_ring()), (9, 1));
    pools.give(&long, 0);
    let again = pools.start(Hit::default(), 3).unwrap();
    assert_eq!(again.ring.len(), 2);
    pools.give(&short, 0);
    pools.give(&again, 0);
    assert_eq!((pools.free(), pools.free_ring()), (9, 4));
}

/// Checks a window of 20 positions in a ring of 3 blocks: a sequence that ended after 6 blocks left the blocks
/// 3, 4 and 5 there.
#[test]
fn a_ring_is_taken_over_where_it_holds_the_window() {
    let ring = KvRing { window: 20, blocks: 3, total: 6 };
    let kept = || {
        let mut pools = pools(20, Some(ring), Some(Eviction::Lru));
        let holding = fill(&mut pools, 0, 6);
        pools.give(&holding, 96);
        (pools, holding)
    };
    let (mut pools, first) = kept();
    // After block 5 (96 positions), the window begins in block 4. After block 4, it begins in block 3.
    assert_eq!([4, 5, 6, 9].map(|count| found(&pools, 0, count)), [0, 5, 6, 6]);
    let other = pools.start(Hit::default(), 9).unwrap();
    assert!(other.ring.iter().all(|block| !first.ring.contains(block)), "the kept ring is given up last");
    let hit = pools.find(Root::Short, 0..160, 160);
    let again = pools.start(hit, 10).unwrap();
    assert_eq!((again.ring.clone(), again.full.len()), (first.ring.clone(), 6));
    // The ring has a new owner.
    assert_eq!(found(&pools, 0, 6), 0);
    pools.give(&again, 96);
    assert_eq!(found(&pools, 0, 6), 6);
    // A third sequence needs the ring itself.
    let third = pools.start(Hit::default(), 9).unwrap();
    assert_eq!((found(&pools, 0, 6), pools.free_ring()), (0, 0));
    pools.give(&third, 0);
    pools.give(&other, 0);
    assert_eq!((pools.free(), pools.free_ring()), (20, 6));

    // The block after which the ring goes on is overwritten with other tokens.
    let (mut pools, _) = kept();
    let mut other = pools.start(Hit::default(), 20).unwrap();
    assert!(pools.grow(&mut other, 15, 0));
    assert_eq!(found(&pools, 0, 6), 5);
    assert!(pools.grow(&mut other, 16, 0));
    assert_eq!(found(&pools, 0, 6), 0);
}

#[test]
fn a_short_ring_grows_with_the_next_sequence() {
    let ring = KvRing { window: 20, blocks: 3, total: 3 };
    let mut pools = pools(20, Some(ring), Some(Eviction::Lru));
    let short = fill(&mut pools, 0, 2);
    assert_eq!(short.ring.len(), 2);
    pools.give(&short, 32);
    let hit = pools.find(Root::Short, 0..80, 80);
    assert_eq!(hit.positions(), 32);
    let long = pools.start(hit, 5).unwrap();
    assert_eq!((&long.ring[..2], long.ring.len()), (&short.ring[..], 3));
}
