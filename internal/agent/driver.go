// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"

	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
)

// newInterposer returns the interposer's libraries for the node's driver. newInterposer reports the
// names that the driver exports and the libraries do not know. changed is called when there may be new
// libraries.
func newInterposer(cfg config.Config, recorder *events.Recorder, changed func(), log *slog.Logger) *driverlib.Node {
	plain := paths.Versioned(cfg.Paths.InstallDir, version.Version)
	return &driverlib.Node{
		Plain:  plain,
		Parent: paths.Variants(plain),
		Find:   func() driverlib.Paths { return driverLibraries(cfg.Driver) },
		Changed: func(v driverlib.Variant, err error) {
			changed()
			reportDriver(cfg, v, err, recorder, log)
		},
	}
}

// driverLibraries finds the driver's libraries. driverLibraries leaves out libraries that are
// missing.
func driverLibraries(cfg config.Driver) driverlib.Paths {
	found := driverlib.Paths{}
	for _, kind := range driverlib.Kinds {
		if kind.Name == paths.NVMLLibrary && cfg.NVMLLibrary != "" {
			found[kind.Name] = cfg.NVMLLibrary
		} else if path, err := nvml.FindBeside(cfg.Root, cfg.NVMLLibrary, kind.Name); err == nil {
			found[kind.Name] = path
		}
	}
	return found
}

func reportDriver(cfg config.Config, v driverlib.Variant, err error, recorder *events.Recorder, log *slog.Logger) {
	switch {
	case err != nil && !v.Found():
		log.Info("found no driver; containers get the names that this version knows")
	case err != nil:
		log.Warn("failed to make libraries for the driver; containers get the names that this version knows", "error", err)
		recorder.OnNode(events.VGPUDriverNames, "containers get the driver's names that nri-vgpu %s knows, as the driver could not be read: %v", version.Version, err)
	default:
		log.Info("made libraries for the driver", "dir", v.Dir)
	}
	if unknown := v.Summary(); unknown != "" {
		log.Warn("found names of the driver that this version does not know", "names", unknown)
		recorder.OnNode(events.VGPUDriverNames, "the driver exports names that nri-vgpu %s does not know; %s", version.Version, unknown)
	}
	if err := v.Write(paths.DriverNames(cfg.Paths.RunDir)); err != nil {
		log.Warn("failed to write the driver's names", "error", err)
	}
}
