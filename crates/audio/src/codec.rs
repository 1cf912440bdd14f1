//! One packet of compressed audio to mono samples: symphonia's decoders and libopus behind one door.

use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::well_known::*;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};

use crate::aac;
use crate::error::{AudioWarning, Fault};
use crate::opus::OpusDecoder;

/// A decoder of one track.
pub(crate) struct Codec {
    inner: Inner,
    /// The codec's name for people.
    pub name: String,
    /// Something to tell people about this codec.
    pub warning: Option<AudioWarning>,
    scratch: Vec<f32>,
}

enum Inner {
    Symphonia(Box<dyn AudioDecoder>),
    Opus(Box<OpusDecoder>),
}

/// What one packet gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoded {
    /// Sampling rate in Hz.
    pub rate: u32,
    /// Channels before the downmix.
    pub channels: usize,
    /// Samples of a channel in the packet, with those that were trimmed.
    pub frames: usize,
    /// Mono samples appended.
    pub kept: usize,
}

impl Codec {
    /// A decoder for a track with these parameters, or an error that names the codec.
    pub fn new(params: &AudioCodecParameters) -> Result<Self, Fault> {
        let mut params = params.clone();
        let mut name = codec_name(params.codec);
        let mut warning = None;
        if params.codec == CODEC_ID_OPUS {
            let head = params.extra_data.as_deref().unwrap_or_default();
            let decoder = OpusDecoder::new(head, params.channels.as_ref().map_or(2, Channels::count))?;
            return Ok(Self { inner: Inner::Opus(Box::new(decoder)), name, warning, scratch: Vec::new() });
        }
        if params.codec == CODEC_ID_AAC
            && let Some(config) = params.extra_data.as_deref().and_then(aac::Config::parse)
        {
            name = config.name();
            if let Some(core) = config.core()? {
                params.with_sample_rate(config.rate).with_extra_data(core.into());
                warning = Some(AudioWarning::CoreOnly { profile: name.clone(), core_rate: config.rate });
            }
        }
        let decoder = symphonia::default::get_codecs()
            .make_audio_decoder(&params, &AudioDecoderOptions::default())
            .map_err(|error| match error {
                Error::Unsupported(_) => {
                    let channels = params.channels.as_ref().map_or(0, Channels::count);
                    let many =
                        if channels > 2 { format!(" with {channels} channels") } else { String::new() };
                    Fault::Unsupported(format!("{name}{many}"))
                }
                error => fault(error),
            })?;
        Ok(Self { inner: Inner::Symphonia(decoder), name, warning, scratch: Vec::new() })
    }

    /// Decodes one packet and appends its mean over channels to `out`. Corrupt data is [`Fault::Corrupt`]; the next
    /// packet can be tried.
    pub fn decode(&mut self, packet: &PacketRef<'_>, out: &mut Vec<f32>) -> Result<Decoded, Fault> {
        self.scratch.clear();
        let (rate, channels, frames) = match &mut self.inner {
            Inner::Opus(opus) => {
                let trim_end = usize::try_from(packet.trim_end.get()).unwrap_or(usize::MAX);
                let frames = opus.decode(packet.data, trim_end, &mut self.scratch)?;
                (crate::opus::RATE, opus.channels(), frames)
            }
            Inner::Symphonia(decoder) => {
                let audio = decoder.decode_ref(packet).map_err(fault)?;
                audio.copy_to_vec_interleaved(&mut self.scratch);
                (audio.spec().rate(), audio.spec().channels().count(), audio.frames())
            }
        };
        let kept = self.scratch.len() / channels.max(1);
        if channels == 1 {
            out.extend_from_slice(&self.scratch);
        } else {
            let scale = 1.0 / channels as f32;
            out.extend(self.scratch.chunks_exact(channels.max(1)).map(|f| f.iter().sum::<f32>() * scale));
        }
        Ok(Decoded { rate, channels, frames, kept })
    }

    /// Forgets what came before, after a loss.
    pub fn reset(&mut self) {
        match &mut self.inner {
            Inner::Symphonia(decoder) => decoder.reset(),
            Inner::Opus(opus) => opus.reset(),
        }
    }
}

/// A packet without time stamps.
pub(crate) fn packet(data: &[u8], frames: u64) -> PacketRef<'_> {
    PacketRef::new(0, Timestamp::ZERO, Duration::new(frames), data)
}

/// Symphonia's errors in our terms.
pub(crate) fn fault(error: Error) -> Fault {
    match error {
        Error::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            Fault::Corrupt("the data breaks off".into())
        }
        Error::IoError(e) if e.raw_os_error().is_some() => Fault::Io(e),
        // An end within data that is in memory already.
        Error::IoError(e) => Fault::Corrupt(e.to_string()),
        Error::Unsupported(what) => Fault::Unsupported(what.into()),
        Error::DecodeError(what) | Error::LimitError(what) => Fault::Corrupt(what.into()),
        other => Fault::Corrupt(other.to_string()),
    }
}

/// The name people know a codec by.
pub(crate) fn codec_name(id: AudioCodecId) -> String {
    let name = match id {
        CODEC_ID_VORBIS => "Vorbis",
        CODEC_ID_OPUS => "Opus",
        CODEC_ID_SPEEX => "Speex",
        CODEC_ID_MUSEPACK => "Musepack",
        CODEC_ID_MP1 => "MPEG audio layer 1",
        CODEC_ID_MP2 => "MPEG audio layer 2",
        CODEC_ID_MP3 => "MP3",
        CODEC_ID_AAC => "AAC",
        CODEC_ID_AC3 => "AC-3 (Dolby Digital)",
        CODEC_ID_EAC3 => "E-AC-3 (Dolby Digital Plus)",
        CODEC_ID_AC4 => "AC-4",
        CODEC_ID_DCA => "DTS",
        CODEC_ID_ATRAC1 | CODEC_ID_ATRAC3 | CODEC_ID_ATRAC3PLUS | CODEC_ID_ATRAC9 => "ATRAC",
        CODEC_ID_WMA => "Windows Media Audio",
        CODEC_ID_RA10 | CODEC_ID_RA20 | CODEC_ID_SIPR | CODEC_ID_COOK | CODEC_ID_RALF => "RealAudio",
        CODEC_ID_FLAC => "FLAC",
        CODEC_ID_WAVPACK => "WavPack",
        CODEC_ID_MONKEYS_AUDIO => "Monkey's Audio",
        CODEC_ID_ALAC => "ALAC",
        CODEC_ID_TTA => "TTA",
        CODEC_ID_TRUEHD => "Dolby TrueHD",
        CODEC_ID_ADPCM_MS => "Microsoft ADPCM",
        CODEC_ID_ADPCM_IMA_WAV | CODEC_ID_ADPCM_IMA_QT => "IMA ADPCM",
        CODEC_ID_ADPCM_G722 => "G.722",
        CODEC_ID_ADPCM_G726 | CODEC_ID_ADPCM_G726LE => "G.726",
        CODEC_ID_PCM_ALAW => "A-law",
        CODEC_ID_PCM_MULAW => "µ-law",
        id => {
            let known = symphonia::default::get_codecs().get_audio_decoder(id);
            return known
                .map_or_else(|| format!("an unknown codec ({id})"), |c| c.codec.info.long_name.into());
        }
    };
    name.to_owned()
}
