// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	gpuA = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	gpuB = "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
	migA = "MIG-00112233-4455-6677-8899-aabbccddee00"
)

func device(uuid string, memory uint64, ppm uint32) limits.Device {
	return limits.Device{UUID: uuid, MemoryBytes: memory, ComputePPM: ppm}
}

func TestRoundTrip(t *testing.T) {
	many := make([]limits.Device, limits.MaxDevices)
	for i := range many {
		many[i] = device(gpuA[:len(gpuA)-2]+string("0123456789abcdef"[i])+"0", uint64(i), 1)
	}
	for _, c := range []struct {
		name    string
		devices []limits.Device
	}{
		{"none", []limits.Device{}},
		{"one", []limits.Device{device(gpuA, 4<<30, 300_000)}},
		{"GPU and MIG, with a context's size", []limits.Device{
			device(gpuA, 1<<40, limits.NoComputeLimit),
			{UUID: migA, MemoryBytes: 0, ComputePPM: 1, ContextBytes: 512 << 20},
		}},
		{"held by MPS", []limits.Device{
			{UUID: gpuA, MemoryBytes: 1, ComputePPM: 1, MPS: true, Multiprocessors: 132},
			{UUID: gpuB, MemoryBytes: 1, ComputePPM: 1, MPS: true},
			{UUID: migA, MemoryBytes: 1, ComputePPM: 1, MPS: true, Multiprocessors: math.MaxInt32},
		}},
		{"with a maximum", []limits.Device{between(300_000, limits.NoComputeLimit)}},
		{"as many as fit", many},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := limits.Create(dir, c.devices); err != nil {
				t.Fatal(err)
			}
			got, err := limits.Read(filepath.Join(dir, limits.LimitsFile))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.devices, got); diff != "" {
				t.Errorf("read other limits than were written (-want +got):\n%s", diff)
			}
			usage, err := limits.ReadUsage(filepath.Join(dir, limits.UsageFile))
			if err != nil {
				t.Fatal(err)
			}
			want := limits.Usage{Devices: make([]limits.DeviceUsage, len(c.devices))}
			if diff := cmp.Diff(want, usage); diff != "" {
				t.Errorf("a new usage page is not empty (-want +got):\n%s", diff)
			}
		})
	}
}

// between returns a device with a guarantee and a maximum.
func between(guarantee, maximum uint32) limits.Device {
	d := device(gpuA, 1, guarantee)
	d.MaximumPPM = maximum
	return d
}

// TestPagesWithoutMaximum checks that a container with leases may use all of the GPU's time if its
// page is older than MaximumPPM.
func TestPagesWithoutMaximum(t *testing.T) {
	const deviceAt, computeAt, maximumAt = 16, 20, 48
	for guarantee, want := range map[uint32]uint32{300_000: limits.NoComputeLimit, limits.NoComputeLimit: 0} {
		page, err := limits.Encode([]limits.Device{between(300_000, 500_000)})
		if err != nil {
			t.Fatal(err)
		}
		page = append(page, make([]byte, 4096-len(page))...)
		page = changed(deviceAt+computeAt, guarantee)(page)
		devices, err := limits.Decode(changed(deviceAt+maximumAt, 0)(page))
		if err != nil || len(devices) != 1 || devices[0].ComputePPM != guarantee || devices[0].MaximumPPM != want {
			t.Errorf("guarantee %d: %+v, %v; want the maximum %d", guarantee, devices, err, want)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		devices []limits.Device
	}{
		{"no prefix", []limits.Device{device(gpuA[4:], 1, 1)}},
		{"unknown prefix", []limits.Device{device("TPU-"+gpuA[4:], 1, 1)}},
		{"MIG name of old drivers", []limits.Device{device("MIG-"+gpuA+"/1/0", 1, 1)}},
		{"short", []limits.Device{device(gpuA[:39], 1, 1)}},
		{"dash missing", []limits.Device{device("GPU-001122330445506677088990aabbccddeeff", 1, 1)}},
		{"not hexadecimal", []limits.Device{device("GPU-0011223g-4455-6677-8899-aabbccddeeff", 1, 1)}},
		{"no compute", []limits.Device{device(gpuA, 1, 0)}},
		{"more than all compute", []limits.Device{device(gpuA, 1, limits.NoComputeLimit+1)}},
		{"a maximum below the guarantee", []limits.Device{between(300_000, 200_000)}},
		{"a maximum that is the guarantee", []limits.Device{between(300_000, 300_000)}},
		{"a maximum of more than all", []limits.Device{between(300_000, limits.NoComputeLimit+1)}},
		{"MPS with a maximum", []limits.Device{{UUID: gpuA, ComputePPM: 1, MaximumPPM: 2, MPS: true}}},
		{"fewer multiprocessors than none", []limits.Device{{UUID: gpuA, ComputePPM: 1, MPS: true, Multiprocessors: -1}}},
		{"more multiprocessors than can be written", []limits.Device{{UUID: gpuA, ComputePPM: 1, MPS: true, Multiprocessors: math.MaxInt32 + 1}}},
		{"a maximum without a guarantee", []limits.Device{between(limits.NoComputeLimit, limits.NoComputeLimit)}},
		{"twice the same", []limits.Device{device(gpuA, 1, 1), device(gpuA, 2, 1)}},
		{"too many", make([]limits.Device, limits.MaxDevices+1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := limits.Create(dir, c.devices); !errors.Is(err, limits.ErrInvalid) {
				t.Errorf("Create: %v, want ErrInvalid", err)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("Create left %v", left)
			}
		})
	}
}

func TestCreateNamesTheAllowedMaximum(t *testing.T) {
	err := limits.Create(t.TempDir(), []limits.Device{between(300_000, 200_000)})
	if want := "want 0 or 300001 to 1000000"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestNothingStaysOpen checks that every function closes its descriptors and mappings of a page.
// The agent reads each page many times, and cannot unmount a file system with an open file.
func TestNothingStaysOpen(t *testing.T) {
	dir := t.TempDir()
	usage, page := filepath.Join(dir, limits.UsageFile), filepath.Join(dir, limits.LimitsFile)
	devices := []limits.Device{device(gpuA, 1, 1)}
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Create", func() error { return limits.Create(dir, devices) }},
		{"Update", func() error { return limits.Update(dir, devices) }},
		{"Read", func() error { _, err := limits.Read(page); return err }},
		{"Observe", func() error { return limits.Observe(dir, []uint64{1}) }},
		{"Observed", func() error { _, err := limits.Observed(page); return err }},
		{"ReadUsage", func() error { _, err := limits.ReadUsage(usage); return err }},
		{"Cut", func() error {
			_, err := limits.Cut(usage)
			return errors.Join(os.Truncate(usage, limits.UsageBytes+1), err)
		}},
		{"Cut what has grown", func() error { _, err := limits.Cut(usage); return err }},
		{"OpenLending", func() error {
			l, err := limits.OpenLending(dir)
			if err != nil {
				return err
			}
			return l.Close()
		}},
	} {
		if err := c.call(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, left := range openIn(t, dir) {
			t.Errorf("%s leaves open: %s", c.name, left)
		}
	}
}

// openIn returns the test process's descriptors and mappings of files in a directory.
func openIn(t *testing.T, dir string) []string {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(maps), "\n")
	for _, d := range descriptors {
		target, _ := os.Readlink("/proc/self/fd/" + d.Name()) // Readlink fails only for the closed descriptor of /proc/self/fd
		lines = append(lines, target)
	}
	return slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, dir) })
}

func TestPermissions(t *testing.T) {
	dir := t.TempDir()
	if err := limits.Create(dir, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{limits.LimitsFile: 0o644, limits.UsageFile: 0o666} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v whatever the umask", name, info.Mode(), want)
		}
	}
}

func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, limits.LimitsFile)
	devices := []limits.Device{device(gpuA, 1<<30, 500_000), device(gpuB, 2<<30, 1)}
	if err := limits.Create(dir, devices); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	for i := range uint64(5) {
		devices[0].MemoryBytes = i
		devices[1].MaximumPPM = uint32(i % 2 * 700_000)
		if err := limits.Update(dir, devices); err != nil {
			t.Fatal(err)
		}
		got, err := limits.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(devices, got); diff != "" {
			t.Errorf("update %d (-want +got):\n%s", i, diff)
		}
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("the page was replaced: processes that have mapped it would keep the old limits")
	}
}

func TestUpdateRefusesInvalidLimits(t *testing.T) {
	dir := t.TempDir()
	want := []limits.Device{device(gpuA, 1, 1)}
	if err := limits.Create(dir, want); err != nil {
		t.Fatal(err)
	}
	if err := limits.Update(dir, []limits.Device{device(gpuA, 1, 0)}); !errors.Is(err, limits.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	path := filepath.Join(dir, limits.LimitsFile)
	if got, err := limits.Read(path); err != nil || !cmp.Equal(want, got) {
		t.Errorf("the limits are %+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("memory = 4096\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := limits.Update(dir, want); !errors.Is(err, limits.ErrForeign) {
		t.Errorf("a foreign page: %v, want ErrForeign", err)
	}
}

// TestCreateCleansUp checks that a failed Create leaves no temporary file.
func TestCreateCleansUp(t *testing.T) {
	for name, left := range map[string][]string{
		limits.UsageFile:  {limits.UsageFile},
		limits.LimitsFile: {limits.LimitsFile, limits.UsageFile},
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, name, "in the way"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := limits.Create(dir, nil); err == nil {
			t.Errorf("%s: no error, although a directory has the name", name)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, entry := range entries {
			got = append(got, entry.Name())
		}
		if !slices.Equal(got, left) {
			t.Errorf("%s: left are %v, want %v", name, got, left)
		}
	}
	if err := limits.Create(filepath.Join(t.TempDir(), "missing"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a directory that is not there: %v, want ErrNotExist", err)
	}
}

func TestCreateApart(t *testing.T) {
	parent := t.TempDir()
	dir, apart := filepath.Join(parent, "container"), filepath.Join(parent, "pages")
	for _, d := range []string{dir, apart} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	usage, err := os.OpenFile(filepath.Join(apart, "1"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer usage.Close()
	want := []limits.Device{device(gpuA, 1<<30, 1)}
	if err := limits.CreateApart(dir, usage, want); err != nil {
		t.Fatal(err)
	}
	if got, err := limits.Read(filepath.Join(dir, limits.LimitsFile)); err != nil || !cmp.Equal(want, got) {
		t.Errorf("the limits are %+v, %v", got, err)
	}
	if target, err := os.Readlink(filepath.Join(dir, limits.UsageFile)); err != nil || target != "../pages/1" {
		t.Errorf("the usage page is a link to %q, %v", target, err)
	}
	if got, err := limits.ReadUsage(filepath.Join(dir, limits.UsageFile)); err != nil || len(got.Devices) != 1 {
		t.Errorf("the usage is %+v, %v", got, err)
	}
	if info, err := usage.Stat(); err != nil || info.Mode() != 0o666 || info.Size() != limits.UsageBytes {
		t.Errorf("the page has mode %v and %d bytes, %v", info.Mode(), info.Size(), err)
	}
}

func TestCreateApartFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(t.TempDir(), "page")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := os.Open(path) // read-only
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if err := limits.CreateApart(dir, page, nil); err == nil {
		t.Error("no error though the page cannot be written")
	}
	writable, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writable.Close()
	if err := os.Mkdir(filepath.Join(dir, limits.UsageFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := limits.CreateApart(dir, writable, nil); err == nil {
		t.Error("no error though a directory is where the link should be")
	}
	if _, err := os.Stat(filepath.Join(dir, limits.LimitsFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there are limits without a usage page: %v", err)
	}
}

func TestUpdateRefusesOtherGPUs(t *testing.T) {
	dir := t.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1, 1), device(gpuB, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	for name, devices := range map[string][]limits.Device{
		"fewer":   {device(gpuA, 1, 1)},
		"swapped": {device(gpuB, 1, 1), device(gpuA, 1, 1)},
		"other":   {device(gpuA, 1, 1), device(migA, 1, 1)},
	} {
		if err := limits.Update(dir, devices); !errors.Is(err, limits.ErrDevicesChanged) {
			t.Errorf("%s: %v, want ErrDevicesChanged", name, err)
		}
	}
}

// TestWriterDiesHalfWay checks that Read and Update work whatever a dead writer has written into
// the inactive copy.
func TestWriterDiesHalfWay(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, limits.LimitsFile)
	want := []limits.Device{device(gpuA, 1<<30, 1)}
	if err := limits.Create(dir, want); err != nil {
		t.Fatal(err)
	}
	page, _ := os.ReadFile(path)
	for i := 64 + 1048; i < 64+2*1048; i++ {
		page[i] ^= 0xa5
	}
	if err := os.WriteFile(path, page, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := limits.Read(path)
	if err != nil || !cmp.Equal(want, got) {
		t.Fatalf("Read after a half-written update: %v, %v", got, err)
	}
	if err := limits.Update(dir, want); err != nil {
		t.Errorf("Update after a half-written one: %v", err)
	}
}

// changed sets a number in the active copy, and corrects the checksum.
func changed(offset int, value uint32) func(page []byte) []byte {
	return func(page []byte) []byte {
		const copyAt, checksumAt = 64, 1040
		active := page[copyAt:]
		binary.LittleEndian.PutUint32(active[offset:], value)
		sum := fnv.New64a()
		sum.Write(active[:checksumAt])
		binary.LittleEndian.PutUint64(active[checksumAt:], sum.Sum64())
		return page
	}
}

func TestBadPages(t *testing.T) {
	dir := t.TempDir()
	if err := limits.Create(dir, []limits.Device{device(gpuA, 1<<30, 1)}); err != nil {
		t.Fatal(err)
	}
	readers := map[string]func(string) error{
		limits.LimitsFile: func(p string) error { _, err := limits.Read(p); return err },
		limits.UsageFile:  func(p string) error { _, err := limits.ReadUsage(p); return err },
	}
	for _, c := range []struct {
		name string
		file string
		edit func([]byte) []byte
		want error
	}{
		{"empty limits", limits.LimitsFile, func([]byte) []byte { return nil }, limits.ErrForeign},
		{"text as limits", limits.LimitsFile, func([]byte) []byte { return []byte("memory = 4096\n") }, limits.ErrForeign},
		{"limits of a magic and no version", limits.LimitsFile, func(p []byte) []byte { return p[:11] }, limits.ErrForeign},
		{"limits of a version and no more", limits.LimitsFile, func(p []byte) []byte { return p[:12] }, limits.ErrTruncated},
		{"usage as limits", limits.LimitsFile, func(p []byte) []byte { p[5] = 'U'; return p }, limits.ErrForeign},
		{"future limits", limits.LimitsFile, func(p []byte) []byte { p[8]++; return p }, limits.ErrVersion},
		{"short limits", limits.LimitsFile, func(p []byte) []byte { return p[:4095] }, limits.ErrTruncated},
		{"long limits", limits.LimitsFile, func(p []byte) []byte { return append(p, 0) }, limits.ErrTruncated},
		{"flipped limit", limits.LimitsFile, func(p []byte) []byte { p[64+16+24] ^= 1; return p }, limits.ErrCorrupt},
		{"flipped checksum", limits.LimitsFile, func(p []byte) []byte { p[64+1040] ^= 1; return p }, limits.ErrCorrupt},
		{"generation without copy", limits.LimitsFile, func(p []byte) []byte { p[16] = 1; return p }, limits.ErrCorrupt},
		{"generation of another copy", limits.LimitsFile, func(p []byte) []byte { p[16] = 2; return p }, limits.ErrCorrupt},
		{"more GPUs than there can be", limits.LimitsFile, changed(8, 17), limits.ErrCorrupt},
		{"GPU of an unknown kind", limits.LimitsFile, changed(16+16, 3), limits.ErrCorrupt},
		{"GPU without compute", limits.LimitsFile, changed(16+20, 0), limits.ErrCorrupt},
		{"twice the same GPU", limits.LimitsFile, func(p []byte) []byte {
			copy(p[64+16+64:64+16+2*64], p[64+16:])
			return changed(8, 2)(p)
		}, limits.ErrCorrupt},
		{"empty usage", limits.UsageFile, func([]byte) []byte { return nil }, limits.ErrForeign},
		{"future usage", limits.UsageFile, func(p []byte) []byte { p[8]++; return p }, limits.ErrVersion},
		{"short usage", limits.UsageFile, func(p []byte) []byte { return p[:4096] }, limits.ErrTruncated},
		{"usage of too many processes", limits.UsageFile, func(p []byte) []byte { p[26] = 1; return p }, limits.ErrCorrupt},
		{"usage of one process too many", limits.UsageFile, func(p []byte) []byte { p[24], p[25] = 1, 4; return p }, limits.ErrCorrupt},
		{"usage of too many GPUs", limits.UsageFile, func(p []byte) []byte { p[28] = 17; return p }, limits.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join(dir, c.file))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), c.file)
			if err := os.WriteFile(path, c.edit(page), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := readers[c.file](path); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestDirectoriesAreNoPages(t *testing.T) {
	dir := t.TempDir()
	if got, err := limits.Read(dir); !errors.Is(err, unix.EISDIR) {
		t.Errorf("Read: %v, %v, want EISDIR", got, err)
	}
	if got, err := limits.ReadUsage(dir); !errors.Is(err, unix.EISDIR) {
		t.Errorf("ReadUsage: %v, %v, want EISDIR", got, err)
	}
}

func TestMissingPages(t *testing.T) {
	dir := t.TempDir()
	if _, err := limits.Read(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read: %v, want ErrNotExist", err)
	}
	if _, err := limits.ReadUsage(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadUsage: %v, want ErrNotExist", err)
	}
	if _, err := limits.Cut(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Cut: %v, want ErrNotExist", err)
	}
	if err := limits.Update(dir, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Update: %v, want ErrNotExist", err)
	}
}
