#!/bin/sh
# The recordings that the tests of crates/audio read: two seconds of synthetic speech in every container and codec.
# Needs ffmpeg, sox, espeak-ng and opus-tools. The results are committed; run it only to add to them.
#
#     tools/goldens/audio_fixtures.sh
set -eu
cd "$(dirname "$0")/../../crates/audio/tests"
mkdir -p fixtures
cd fixtures
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
enc() { ffmpeg -v error -y -bitexact -i "$@"; }

# 2 s, 16 kHz: the reference that all others are compared with.
espeak-ng -v en-gb -s 190 -w "$tmp/say.wav" "Every recording should say the same few words."
sox -R "$tmp/say.wav" -r 16000 -c 1 -b 16 "$tmp/ref.wav" gain -n -6 pad 0.1 2 trim 0 2 2>/dev/null
sox -R "$tmp/ref.wav" -r 48000 "$tmp/48.wav"
sox -R "$tmp/ref.wav" -r 44100 "$tmp/44.wav"
sox -R "$tmp/ref.wav" -r 22050 "$tmp/22.wav"
sox -R "$tmp/44.wav" -c 2 "$tmp/44s.wav"
sox -R "$tmp/ref.wav" -r 8000 "$tmp/8.wav"

flac_opts="-compression_level 12"
enc "$tmp/ref.wav" $flac_opts speech.flac
enc "$tmp/44s.wav" -c:a libmp3lame -b:a 64k cbr.mp3
enc "$tmp/44.wav" -c:a libmp3lame -b:a 48k mono.mp3
enc "$tmp/44s.wav" -c:a libmp3lame -q:a 7 vbr.mp3
enc "$tmp/44s.wav" -c:a libmp3lame -q:a 7 -write_xing 0 vbr_no_xing.mp3
enc "$tmp/44.wav" -c:a mp2 -b:a 64k layer2.mp2
enc "$tmp/44s.wav" -c:a aac -b:a 48k adts.aac
enc "$tmp/44s.wav" -c:a aac -b:a 48k moov_last.m4a
enc "$tmp/44.wav" -c:a aac -b:a 40k -movflags +faststart moov_first.mov
enc "$tmp/44.wav" -c:a aac -b:a 40k -movflags frag_keyframe+empty_moov -frag_duration 500000 fragmented.mp4
enc "$tmp/22.wav" -c:a aac -b:a 32k core22.m4a
enc "$tmp/ref.wav" -c:a alac alac.m4a
enc "$tmp/48.wav" -c:a libopus -b:a 24k opus.mp4
enc "$tmp/44s.wav" -c:a libvorbis -q:a 0 -page_duration 200000 vorbis.ogg
enc "$tmp/44.wav" -c:a libvorbis -q:a 0 vorbis.webm
enc "$tmp/48.wav" -c:a libopus -b:a 24k opus.webm
opusenc --quiet --serial 7 --bitrate 24 --max-delay 200 "$tmp/48.wav" opus.opus
enc "$tmp/ref.wav" $flac_opts -c:a flac -page_duration 200000 -f ogg flac.oga
enc "$tmp/ref.wav" -c:a flac $flac_opts flac.mkv
enc "$tmp/44.wav" -c:a aac -b:a 40k aac.mkv
enc "$tmp/8.wav" -c:a pcm_mulaw ulaw.caf
enc "$tmp/ref.wav" -c:a alac alac.caf
enc "$tmp/ref.wav" -c:a adpcm_ms ms.wav
enc "$tmp/ref.wav" -c:a adpcm_ima_wav ima.wav
enc "$tmp/8.wav" -c:a pcm_alaw alaw.wav
enc "$tmp/44.wav" -c:a libmp3lame -b:a 40k mp3.wav
enc "$tmp/8.wav" -c:a pcm_mulaw ulaw.aifc 2>/dev/null || sox "$tmp/8.wav" -e mu-law -t aifc ulaw.aifc
# Files without a track that could be decoded.
ffmpeg -v error -y -bitexact -f lavfi -i color=s=32x32:d=0.2:r=10 -c:v mpeg4 video_only.mp4
ffmpeg -v error -y -bitexact -f lavfi -i color=s=32x32:d=0.2:r=10 -c:v mpeg4 video_only.mkv
ffmpeg -v error -y -bitexact -f lavfi -i color=s=32x32:d=2:r=5 -i "$tmp/44.wav" -c:v mpeg4 -c:a aac -b:a 40k video_and_audio.mp4
# Tracks that start late, and two tracks.
for kind in mp4 mkv; do
    ffmpeg -v error -y -bitexact -f lavfi -i color=s=32x32:d=2:r=5 -itsoffset 0.5 -i "$tmp/44.wav" -t 1.6 \
        -c:v mpeg4 -c:a aac -b:a 40k late.$kind
done
ffmpeg -v error -y -bitexact -i "$tmp/48.wav" -i "$tmp/8.wav" -map 0 -map 1 -c:a libopus -b:a 16k -disposition:a:0 default two_tracks.mkv
ffmpeg -v error -y -bitexact -i "$tmp/48.wav" -t 0.1 -c:a ac3 -b:a 64k ac3.mkv
ffmpeg -v error -y -bitexact -i "$tmp/48.wav" -t 0.1 -c:a ac3 -b:a 64k ac3.mp4
ffmpeg -v error -y -bitexact -i "$tmp/ref.wav" -t 0.3 -c:a libspeex speex.ogg
ffmpeg -v error -y -bitexact -i "$tmp/44.wav" -t 0.1 -c:a wmav2 -b:a 32k wma.wma
du -cb * | tail -1
