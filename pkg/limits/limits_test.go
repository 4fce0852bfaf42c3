package limits_test

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// TestPagesWithoutMaximum: on pages from before there was a maximum, a container that
// borrows may have all of the GPU's time.
func TestPagesWithoutMaximum(t *testing.T) {
	const copyAt, deviceAt, computeAt, maximumAt, checksumAt = 64, 16, 20, 48, 1040
	for guarantee, want := range map[uint32]uint32{300_000: limits.NoComputeLimit, limits.NoComputeLimit: 0} {
		page, err := limits.Encode([]limits.Device{between(300_000, 500_000)})
		if err != nil {
			t.Fatal(err)
		}
		page = append(page, make([]byte, 4096-len(page))...)
		active := page[copyAt:]
		binary.LittleEndian.PutUint32(active[deviceAt+computeAt:], guarantee)
		binary.LittleEndian.PutUint32(active[deviceAt+maximumAt:], 0)
		sum := fnv.New64a()
		sum.Write(active[:checksumAt])
		binary.LittleEndian.PutUint64(active[checksumAt:], sum.Sum64())
		devices, err := limits.Decode(page)
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

// TestWriterDiesHalfWay: whatever a writer has put into the inactive copy, the
// active one stays readable and can be updated.
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
		{"usage as limits", limits.LimitsFile, func(p []byte) []byte { p[5] = 'U'; return p }, limits.ErrForeign},
		{"future limits", limits.LimitsFile, func(p []byte) []byte { p[8]++; return p }, limits.ErrVersion},
		{"short limits", limits.LimitsFile, func(p []byte) []byte { return p[:4095] }, limits.ErrTruncated},
		{"long limits", limits.LimitsFile, func(p []byte) []byte { return append(p, 0) }, limits.ErrTruncated},
		{"flipped limit", limits.LimitsFile, func(p []byte) []byte { p[64+16+24] ^= 1; return p }, limits.ErrCorrupt},
		{"flipped checksum", limits.LimitsFile, func(p []byte) []byte { p[64+1040] ^= 1; return p }, limits.ErrCorrupt},
		{"generation without copy", limits.LimitsFile, func(p []byte) []byte { p[16] = 1; return p }, limits.ErrCorrupt},
		{"empty usage", limits.UsageFile, func([]byte) []byte { return nil }, limits.ErrForeign},
		{"future usage", limits.UsageFile, func(p []byte) []byte { p[8]++; return p }, limits.ErrVersion},
		{"short usage", limits.UsageFile, func(p []byte) []byte { return p[:4096] }, limits.ErrTruncated},
		{"usage of too many processes", limits.UsageFile, func(p []byte) []byte { p[26] = 1; return p }, limits.ErrCorrupt},
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

func TestMissingPages(t *testing.T) {
	dir := t.TempDir()
	if _, err := limits.Read(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read: %v, want ErrNotExist", err)
	}
	if _, err := limits.ReadUsage(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReadUsage: %v, want ErrNotExist", err)
	}
	if err := limits.Update(dir, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Update: %v, want ErrNotExist", err)
	}
}
