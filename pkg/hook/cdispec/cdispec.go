// SPDX-License-Identifier: Apache-2.0

// Package cdispec writes nri-vgpu's own CDI spec, whose devices set environment variables of
// a container. The package also looks up the CDI devices of the node.
package cdispec

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

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

const fileName = "nri-vgpu.json"

// deviceName matches the names that CDI allows for a device.
var deviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]*$`)

func envSpec(gpus []gpu.GPU, capabilities []string) *specs.Spec {
	devices := []specs.Device{
		envVariable(adjust.NoDevices, adjust.VisibleDevices+"="+adjust.NoDevices),
		envVariable(adjust.PreloadDevice, adjust.LDPreload+"="+adjust.PreloadValue),
		envVariable(adjust.CapabilitiesDevice, adjust.DriverCapabilities+"="+strings.Join(capabilities, ",")),
	}
	for _, g := range gpus {
		if deviceName.MatchString(g.UUID) {
			devices = append(devices, envVariable(g.UUID, adjust.VisibleDevices+"="+g.UUID))
		}
	}
	return &specs.Spec{Kind: gpuaccess.OwnKind, Devices: devices}
}

func envVariable(device, variable string) specs.Device {
	return specs.Device{Name: device, ContainerEdits: specs.ContainerEdits{Env: []string{variable}}}
}

// Write writes nri-vgpu's CDI spec into dir for the runtime. capabilities are the driver
// capabilities that containers may have. The spec must exist before the plugin registers. Write
// does not rewrite an identical spec, so that no runtime reloads the spec.
func Write(dir string, gpus []gpu.GPU, capabilities []string) error {
	spec := envSpec(gpus, capabilities)
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return fmt.Errorf("make our CDI spec: %w", err)
	}
	spec.Version = version
	path := filepath.Join(dir, fileName)
	if same(path, spec) {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("make our CDI spec: %w", err)
	}
	// WriteSpec validates the spec by CDI's rules and replaces the file atomically.
	if err := cache.WriteSpec(spec, fileName); err != nil {
		return fmt.Errorf("write our CDI spec to %s (injection.cdi_output_dir): %w", dir, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return fmt.Errorf("make our CDI spec readable: %w", err)
	}
	return nil
}

// Remove removes nri-vgpu's CDI spec.
func Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// Devices looks up CDI devices in spec directories. Devices watches the directories, so a
// lookup reads no file.
type Devices struct{ cache *cdi.Cache }

// NewDevices reads and then watches the directories. The directories need not exist.
func NewDevices(dirs []string) (*Devices, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(true))
	if err != nil {
		return nil, fmt.Errorf("watch CDI specs: %w", err)
	}
	return &Devices{cache}, nil
}

// Has reports whether a spec defines the device with this fully qualified name.
func (d *Devices) Has(name string) bool { return d.cache.GetDevice(name) != nil }
