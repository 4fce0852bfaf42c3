// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// program is a way to run one of the programs.
type program struct {
	name    string
	fills   bool     // allocates until a refusal
	blind   bool     // does not print the number of GPUs
	phrase  string   // its runtime's message about a refusal, on standard error
	command []string // "{compiled}", "{clang}" and "{library}" are filled in
	library string   // the name by which the program opens the driver, if the program can choose
}

var programs = []program{
	{name: "openmp", command: []string{"{compiled}/openmp", "map"}},
	{name: "openmp-fill", fills: true, phrase: "out of memory", command: []string{"{compiled}/openmp", "fill"}},
	{name: "openmp-tasks", command: []string{"{compiled}/openmp_tasks"}},
	{name: "clang-openmp", command: []string{"{clang}/openmp", "map"}},
	{name: "clang-openmp-fill", fills: true, phrase: "out of memory", command: []string{"{clang}/openmp", "fill"}},
	// LLVM 14 shares events between GPUs, which CUDA does not permit.
	{name: "clang-openmp-tasks", blind: true, command: []string{"env", "CUDA_VISIBLE_DEVICES=0", "{clang}/openmp_tasks"}},
	{name: "openacc-queues", command: []string{"{compiled}/openacc", "queues"}},
	{name: "openacc-fill", fills: true, phrase: "out of memory", command: []string{"{compiled}/openacc", "fill"}},
	{name: "numba-fill", fills: true, command: numba("fill"), library: "libcuda.so"},
	{name: "numba-fill-by-path", fills: true, command: numba("fill"), library: "{path}"},
	{name: "numba-streams", command: numba("streams"), library: "libcuda.so"},
	{name: "numba-modules", command: numba("modules"), library: "libcuda.so"},
	{name: "halide-run", blind: true, command: halide("run")},
	{name: "halide-fill", blind: true, fills: true, phrase: "CUDA_ERROR_OUT_OF_MEMORY", command: halide("fill")},
}

// numba returns a command that runs Debian's Numba with Debian's Python.
func numba(mode string) []string {
	return []string{"/usr/bin/python3", "testdata/numba_driver.py", "{library}", mode}
}

// halide returns a command that runs Debian's Halide with Debian's Python.
func halide(mode string) []string {
	return []string{"env", "HL_JIT_TARGET=host-cuda", "/usr/bin/python3", "testdata/halide_driver.py", mode}
}

// prepare returns the program's command and environment on the machine.
func (p *program) prepare(m *machine) (command, env []string) {
	m.Helper()
	library := p.library
	if library == "{path}" {
		library = filepath.Join(m.LibraryDir, "libcuda.so.1")
		env = append(env, "NUMBA_CUDA_DRIVER="+library)
	}
	for _, word := range p.command {
		if strings.Contains(word, "{clang}") {
			word = strings.ReplaceAll(word, "{clang}", compileWithClang(m.TB))
		}
		word = strings.ReplaceAll(word, "{compiled}", compiled)
		command = append(command, strings.ReplaceAll(word, "{library}", library))
	}
	return command, env
}

// wantFilled checks that a program got all of its limit, and held no more. spare is the memory that
// may remain in addition to the program's context.
func wantFilled(t *testing.T, m *machine, r result, most, spare uint64) {
	t.Helper()
	if least := most - m.context - spare; r.Granted < least {
		t.Errorf("the program was granted %d MiB of %d, want at least %d", r.Granted/mib, most/mib, least/mib)
	}
	if r.peak > most || r.peak < r.Granted {
		t.Errorf("the program held %d bytes at its peak and was granted %d, want at most %d", r.peak, r.Granted, most)
	}
}

// TestNatively checks that without nri-vgpu the programs run to their end on the simulated driver,
// and stop at the card's size. The tests under limits depend on this result.
func TestNatively(t *testing.T) {
	for driver, profile := range profiles(t) {
		for _, p := range programs {
			t.Run(p.name+"/"+driver, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, profile)
				command, env := p.prepare(m)
				r := m.run(append(env, "LD_LIBRARY_PATH="+withLinkerName(m)), command...)
				if r.Devices != 2 && !p.blind {
					t.Errorf("the program saw %d GPUs, want 2", r.Devices)
				}
				if p.fills {
					wantFilled(t, m, r, card, card/100)
				} else if r.peak < m.context {
					t.Errorf("the program held %d bytes at its peak, want a context's", r.peak)
				}
				if !strings.Contains(r.stderr, p.phrase) {
					t.Errorf("the program did not print %q:\n%s", p.phrase, r.stderr)
				}
			})
		}
	}
}

// TestNumbaOpensTheSoname checks that without a libcuda.so, Numba opens libcuda.so.1.
func TestNumbaOpensTheSoname(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	m.run(nil, "/usr/bin/python3", "testdata/numba_driver.py", "libcuda.so.1", "streams")
}

// withLinkerName returns a directory with the driver by its two names.
func withLinkerName(m *machine) string {
	m.Helper()
	dir := m.TempDir()
	for _, name := range []string{"libcuda.so", "libcuda.so.1"} {
		if err := os.Symlink(filepath.Join(m.LibraryDir, "libcuda.so.1"), filepath.Join(dir, name)); err != nil {
			m.Fatal(err)
		}
	}
	return dir
}

// TestUnderLimits checks that a program runs under limits as natively, and holds no more than its
// limit. A program that allocates until a refusal has all of its limit. If NVML does not list the
// program's memory, the program lacks the size of another context. The program's runtime reports
// the refusal in its own words.
func TestUnderLimits(t *testing.T) {
	for driver, profile := range profiles(t) {
		for _, p := range programs {
			t.Run(p.name+"/memory/"+driver, func(t *testing.T) {
				t.Parallel()
				underLimits(t, p, profile, "--memory", "2Gi")
			})
			if p.fills || driver != kind {
				continue // a share of the time does not affect the program, and one driver is enough
			}
			t.Run(p.name+"/both", func(t *testing.T) {
				t.Parallel()
				underLimits(t, p, profile, "--memory", "2Gi", "--cores", "30")
			})
		}
	}
}

func underLimits(t *testing.T, p program, profile string, options ...string) {
	t.Helper()
	m := newMachine(t, profile)
	command, env := p.prepare(m)
	r := m.limited(options, env, command...)
	if r.Devices != 1 && !p.blind {
		t.Errorf("the program saw %d GPUs, want 1", r.Devices)
	}
	spare := uint64(limit / 100)
	if m.vague {
		spare = m.context
	}
	if p.fills {
		wantFilled(t, m, r, limit, spare)
	} else if r.peak > limit || r.peak < m.context {
		t.Errorf("the program held %d bytes at its peak, want a context's and at most %d", r.peak, limit)
	}
	wantWords(t, p, r.stderr)
}

// wantWords checks that the interposer reported only a refusal, once, and that the runtime also
// reported it.
func wantWords(t *testing.T, p program, stderr string) {
	t.Helper()
	refusals := 0
	if p.fills {
		refusals = 1
	}
	if strings.Count(stderr, "nri-vgpu: refused") != refusals || strings.Count(stderr, "nri-vgpu:") != refusals ||
		!strings.Contains(stderr, p.phrase) {
		t.Errorf("want %d lines of ours, and %q; the program printed:\n%s", refusals, p.phrase, stderr)
	}
}

// TestLimitIsTight checks that a program that needs more than its limit fails with the runtime's
// message, and holds no memory beyond the limit.
func TestLimitIsTight(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "")
	const script = `exec 2>&1; "$0" queues; test $? -ne 0` // the program's first arrays take 16 MiB
	tight := m.context + 8*mib
	r := m.limited([]string{"--memory", strconv.FormatUint(tight, 10)}, nil, "sh", "-c", script, filepath.Join(compiled, "openacc"))
	if !strings.Contains(r.stdout, "out of memory") {
		t.Errorf("the program printed:\n%s", r.stdout)
	}
	if most := m.most(); most > tight || most < m.context {
		t.Errorf("the program held %d bytes at its peak, want a context's and at most %d", most, tight)
	}
}

// TestOnTwoGPUs checks that a program that uses all GPUs at once runs to its end with two GPUs,
// each with the limit.
func TestOnTwoGPUs(t *testing.T) {
	for driver, profile := range profiles(t) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, profile)
			r := m.limited([]string{"--memory", "2Gi", "--gpu", "0", "--gpu", "1"}, nil, filepath.Join(compiled, "openmp_tasks"))
			if r.Devices != 2 {
				t.Errorf("the program saw %d GPUs, want 2", r.Devices)
			}
			if r.peak < 2*m.context || r.peak > 2*limit {
				t.Errorf("the program held %d bytes at its peak, want two contexts' and at most %d", r.peak, 2*limit)
			}
			wantWords(t, program{}, r.stderr)
		})
	}
}

// ---- ffmpeg ----

// frames runs ffmpeg over a test picture with some filters, natively or under limits. frames
// returns the sizes and checksums of the frames. ffmpeg must print no other line.
func frames(m *machine, filters string, options ...string) (sums []string, peak uint64) {
	m.Helper()
	sums, said, peak := filtered(m, filters, options...)
	if said != "" {
		m.Errorf("the program printed:\n%s", said)
	}
	return sums, peak
}

// address is a filter's address, by which ffmpeg names it.
var address = regexp.MustCompile(`0x[0-9a-f]+`)

// filtered runs ffmpeg like frames, and also returns ffmpeg's output.
func filtered(m *machine, filters string, options ...string) (sums []string, said string, peak uint64) {
	m.Helper()
	command := []string{"ffmpeg", "-hide_banner", "-nostdin", "-loglevel", "warning",
		"-f", "lavfi", "-i", "testsrc=size=1280x720:duration=1:rate=25",
		"-vf", filters, "-f", "framemd5", "-"}
	var r result
	if options == nil {
		r = m.run(nil, command...)
	} else {
		r = m.limited(options, nil, command...)
	}
	for line := range strings.Lines(r.stdout) {
		if !strings.HasPrefix(line, "#") {
			sums = append(sums, strings.TrimSpace(line))
		}
	}
	return sums, address.ReplaceAllString(strings.TrimSpace(r.stderr), "0x"), r.peak
}

// TestFfmpeg checks that pictures return from the GPU unchanged, and scaled pictures with their new
// size, natively and under limits.
func TestFfmpeg(t *testing.T) {
	const there, back = "format=yuv420p,hwupload_cuda", "hwdownload,format=yuv420p"
	plain, _ := frames(newMachine(t, ""), "format=yuv420p")
	if len(plain) != 25 {
		t.Fatalf("ffmpeg made %d frames, want 25", len(plain))
	}
	for driver, profile := range profiles(t) {
		for name, options := range map[string][]string{
			"natively": nil,
			"memory":   {"--memory", "2Gi"},
			"both":     {"--memory", "2Gi", "--cores", "20"},
		} {
			if name == "both" && driver != kind {
				continue
			}
			t.Run("upload/"+name+"/"+driver, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, profile)
				got, peak := frames(m, there+","+back, options...)
				if strings.Join(got, "\n") != strings.Join(plain, "\n") {
					t.Errorf("frames differ from those that were not on the GPU:\n%q", got)
				}
				m.wantContext(peak)
			})
			t.Run("scale/"+name+"/"+driver, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, profile)
				got, peak := frames(m, there+",scale_cuda=640:360,"+back, options...)
				for _, frame := range got {
					if !strings.Contains(frame, " 345600,") { // 640 × 360 × 1.5
						t.Errorf("a frame is %q, want one of 345600 bytes", frame)
					}
				}
				if len(got) != len(plain) {
					t.Errorf("%d frames came back, want %d", len(got), len(plain))
				}
				m.wantContext(peak)
			})
		}
	}
}

// filter is a filter of ffmpeg that works on the GPU.
type filter struct {
	graph  string // filters, from the GPU to the GPU
	format string // the format of the resulting frames
	frames int    // their number
	bytes  int    // of each frame
	phrase string // ffmpeg's own output on standard error, also natively
}

var filters = map[string]filter{
	"yadif":     {graph: "yadif_cuda=mode=send_field", format: "yuv420p", frames: 50, bytes: 1280 * 720 * 3 / 2},
	"overlay":   {graph: "split[a][b];[b]scale_cuda=320:180[c];[a][c]overlay_cuda=x=10:y=10", format: "yuv420p", frames: 25, bytes: 1280 * 720 * 3 / 2},
	"chromakey": {graph: "chromakey_cuda=green:0.1:0.0", format: "yuva420p", frames: 25, bytes: 1280 * 720 * 5 / 2},
	"thumbnail": {graph: "thumbnail_cuda=n=5", format: "yuv420p", frames: 5, bytes: 1280 * 720 * 3 / 2,
		phrase: "CUDA_ERROR_INVALID_CONTEXT: invalid device context"}, // frees memory without a context
}

// TestFfmpegFilters checks that ffmpeg makes the same frames and prints the same text under limits
// as natively.
func TestFfmpegFilters(t *testing.T) {
	for driver, profile := range profiles(t) {
		for name, f := range filters {
			t.Run(name+"/"+driver, func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, profile)
				graph := "format=yuv420p,hwupload_cuda," + f.graph + ",hwdownload,format=" + f.format
				want, phrase, _ := filtered(m, graph)
				f.check(t, want, phrase)
				got, said, peak := filtered(m, graph, "--memory", "2Gi")
				if !slices.Equal(got, want) || said != phrase {
					t.Errorf("under a limit it makes %q and prints %q; natively %q and %q", got, said, want, phrase)
				}
				m.wantContext(peak)
			})
		}
	}
}

// check checks the number and the size of the filter's frames, and checks that the filter prints
// only its own messages.
func (f *filter) check(t *testing.T, frames []string, phrase string) {
	t.Helper()
	if len(frames) != f.frames {
		t.Errorf("ffmpeg makes %d frames natively, want %d", len(frames), f.frames)
	}
	for _, frame := range frames {
		if !strings.Contains(frame, fmt.Sprintf(" %d,", f.bytes)) {
			t.Errorf("a frame is %q natively, want one of %d bytes", frame, f.bytes)
		}
	}
	if strings.Count(phrase, "\n") > 0 || !strings.HasSuffix(phrase, f.phrase) || (f.phrase == "") != (phrase == "") {
		t.Errorf("natively it prints %q, want %q at its end", phrase, f.phrase)
	}
}

// wantContext checks that a process used the GPU, and kept to its limit.
func (m *machine) wantContext(peak uint64) {
	m.Helper()
	if peak < m.context || peak > limit {
		m.Errorf("the program held %d bytes at its peak, want a context's and at most %d", peak, limit)
	}
}
