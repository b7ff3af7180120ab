//! Random numbers from a seed, so that traffic can be repeated.

/// `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Draws a number below `end`.
    #[inline]
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        ((self.next() >> 32) * u64::from(end) >> 32) as u32
    }

    /// Draws a number from 0 up to 1, excluded.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Zipf distribution of the ranks from 1 to `n`: rank k is as likely as k to the power of -`exponent`. A draw
/// by rejection-inversion takes a few logarithms, whatever `n` (Hörmann, Derflinger: "Rejection-inversion to
/// generate variates from monotone discrete distributions", 1996).
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    n: f64,
    exponent: f64,
    area_first: f64,
    area_all: f64,
    accept: f64,
}

impl Zipf {
    pub(crate) fn new(n: u32, exponent: f64) -> Zipf {
        let mut zipf = Zipf { n: f64::from(n), exponent, area_first: 0.0, area_all: 0.0, accept: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_all = zipf.area(zipf.n + 0.5);
        zipf.accept = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    #[inline]
    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        loop {
            let area = self.area_all + random.unit() * (self.area_first - self.area_all);
            let x = self.area_inverse(area);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.accept || area >= self.area(rank + 0.5) - self.weight(rank) {
                return rank as u32;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the weight, up to a constant.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        if t.abs() < 1e-8 { log * (1.0 + t / 2.0) } else { log * t.exp_m1() / t }
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.exponent)).max(-1.0);
        let log = if t.abs() < 1e-8 { area * (1.0 - t / 2.0) } else { area * t.ln_1p() / t };
        log.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_draws_each_rank_as_often_as_its_weight_says() {
        const DRAWS: u32 = 200_000;
        for exponent in [0.8, 1.0, 1.3] {
            let (zipf, mut random) = (Zipf::new(100, exponent), Random::new(7));
            let mut seen = [0u32; 101];
            (0..DRAWS).for_each(|_| seen[zipf.draw(&mut random) as usize] += 1);
            let total: f64 = (1..=100).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1u32, 2, 3, 10, 50, 100] {
                let expected = f64::from(DRAWS) * f64::from(rank).powf(-exponent) / total;
                let found = f64::from(seen[rank as usize]);
                // Six standard deviations of a count.
                assert!(
                    (found - expected).abs() < 6.0 * expected.sqrt(),
                    "{exponent} {rank}: {found} {expected}"
                );
            }
        }
    }

    #[test]
    fn numbers_below_a_bound_fill_it_evenly() {
        let mut random = Random::new(1);
        let mut seen = [0u32; 10];
        (0..100_000).for_each(|_| seen[random.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| (9_400..10_600).contains(count)), "{seen:?}");
    }
}
