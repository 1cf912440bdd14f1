//! Decodes recordings and prints what was found: `decode FILE…`, `-` for standard input.

use std::time::Instant;

use wnw_audio::{AudioStream, DecodeOptions, SAMPLE_RATE, Source};

fn main() {
    for arg in std::env::args().skip(1) {
        let source = if arg == "-" { Source::Stdin } else { Source::Path(arg.clone().into()) };
        let start = Instant::now();
        let mut samples = 0;
        let mut energy = 0.0;
        let result = AudioStream::open(source, &DecodeOptions::default()).and_then(|mut stream| {
            while let Some(block) = stream.next_block()? {
                samples += block.len();
                energy += block.iter().map(|x| f64::from(x * x)).sum::<f64>();
            }
            Ok(stream)
        });
        match result {
            Ok(stream) => {
                let (info, seconds) = (stream.info(), samples as f64 / f64::from(SAMPLE_RATE));
                let rms = (energy / samples as f64).sqrt();
                println!(
                    "{arg}: {seconds:.4} s, rms {rms:.5}, {:.2} s to decode; {info:?}",
                    start.elapsed().as_secs_f64()
                );
                stream.warnings().iter().for_each(|w| println!("  warning: {w}"));
            }
            Err(error) => println!("error: {error}"),
        }
    }
}
