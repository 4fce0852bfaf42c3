package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

const (
	// envKind is the kind of our own CDI devices, which set variables that a
	// plugin cannot: the device "void" hides all GPUs from the NVIDIA runtime,
	// "preload" names our libraries, "capabilities" leaves of the driver what is
	// allowed, "GPU-…" shows it that GPU.
	envKind            = reach.OwnKind
	preloadDevice      = "preload"
	capabilitiesDevice = "capabilities"

	envSpecFile = "nri-vgpu.json"
)

func envDevice(name string) string { return envKind + "=" + name }

// deviceName is what CDI allows for one.
var deviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]*$`)

func envSpec(gpus []gpu.GPU, capabilities []string) *specs.Spec {
	devices := []specs.Device{
		envVariable(noDevices, visibleDevices+"="+noDevices),
		envVariable(preloadDevice, ldPreload+"="+preloadValue),
		envVariable(capabilitiesDevice, driverCapabilities+"="+strings.Join(capabilities, ",")),
	}
	for _, g := range gpus {
		if deviceName.MatchString(g.UUID) {
			devices = append(devices, envVariable(g.UUID, visibleDevices+"="+g.UUID))
		}
	}
	return &specs.Spec{Kind: envKind, Devices: devices}
}

func envVariable(device, variable string) specs.Device {
	return specs.Device{Name: device, ContainerEdits: specs.ContainerEdits{Env: []string{variable}}}
}

// WriteEnvSpec writes our own CDI spec into dir, for the runtime to read.
// capabilities are what containers may have of the driver. It
// must be there before the plugin registers. A spec that says the same
// already is left alone, so that no runtime reads it again for nothing.
func WriteEnvSpec(dir string, gpus []gpu.GPU, capabilities []string) error {
	spec := envSpec(gpus, capabilities)
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return fmt.Errorf("make our CDI spec: %w", err)
	}
	spec.Version = version
	path := filepath.Join(dir, envSpecFile)
	if same(path, spec) {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("make our CDI spec: %w", err)
	}
	// This checks the spec against CDI's rules, and replaces the file at once.
	if err := cache.WriteSpec(spec, envSpecFile); err != nil {
		return fmt.Errorf("write our CDI spec to %s (injection.cdi_output_dir): %w", dir, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return fmt.Errorf("make our CDI spec readable: %w", err)
	}
	return nil
}

// RemoveEnvSpec removes our own spec.
func RemoveEnvSpec(dir string) error {
	if err := os.Remove(filepath.Join(dir, envSpecFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove our CDI spec: %w", err)
	}
	return nil
}

func same(path string, spec *specs.Spec) bool {
	want, err := json.Marshal(spec)
	if err != nil {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(bytes.TrimSpace(have), want)
}

// CDIDevices looks CDI devices up in spec directories, which it watches: a
// look-up reads no file.
type CDIDevices struct{ cache *cdi.Cache }

// NewCDIDevices reads and then watches the directories, which may not exist.
func NewCDIDevices(dirs []string) (*CDIDevices, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(true))
	if err != nil {
		return nil, fmt.Errorf("watch CDI specs: %w", err)
	}
	return &CDIDevices{cache}, nil
}

// Has reports whether a spec defines the device of this full name.
func (d *CDIDevices) Has(name string) bool { return d.cache.GetDevice(name) != nil }
