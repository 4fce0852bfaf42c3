// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"time"

	"github.com/BurntSushi/toml"
)

// nriSettings and criSettings are the parts of containerd's configuration that
// doctor checks.
type nriSettings struct {
	Disable             bool   `toml:"disable"`
	DisableConnections  bool   `toml:"disable_connections"`
	PluginPath          string `toml:"plugin_path"`
	RequestTimeout      string `toml:"plugin_request_timeout"`
	RegistrationTimeout string `toml:"plugin_registration_timeout"`
	DefaultValidator    struct {
		Enable          bool     `toml:"enable"`
		RequiredPlugins []string `toml:"required_plugins"`
	} `toml:"default_validator"`
}

type criSettings struct {
	Containerd struct {
		DefaultRuntimeName string `toml:"default_runtime_name"`
	} `toml:"containerd"`
	CDISpecDirs []string `toml:"cdi_spec_dirs"`
}

// parseContainerd parses the output of "containerd config dump".
func parseContainerd(dump []byte) (Settings, error) {
	var file struct {
		Plugins map[string]toml.Primitive `toml:"plugins"`
	}
	meta, err := toml.Decode(string(dump), &file)
	if err != nil {
		return Settings{}, fmt.Errorf("read containerd's configuration: %w", err)
	}
	var nri nriSettings
	var cri criSettings
	// containerd 1.7 uses the third name.
	for name, into := range map[string]any{
		"io.containerd.nri.v1.nri": &nri, "io.containerd.cri.v1.runtime": &cri, "io.containerd.grpc.v1.cri": &cri,
	} {
		table, has := file.Plugins[name]
		if !has {
			continue
		}
		// containerd 2 keeps a table of its gRPC server under the older name.
		if _, both := file.Plugins["io.containerd.cri.v1.runtime"]; both && name == "io.containerd.grpc.v1.cri" {
			continue
		}
		if err := meta.PrimitiveDecode(table, into); err != nil {
			return Settings{}, fmt.Errorf("read containerd's configuration of %s: %w", name, err)
		}
	}
	s := Settings{
		NRIDisabled:    nri.Disable || nri.DisableConnections,
		PluginPath:     nri.PluginPath,
		DefaultRuntime: cri.Containerd.DefaultRuntimeName,
		CDISpecDirs:    cri.CDISpecDirs,
	}
	if nri.DefaultValidator.Enable {
		s.RequiredPlugins = nri.DefaultValidator.RequiredPlugins
	}
	for _, d := range []struct {
		text string
		into *time.Duration
	}{{nri.RequestTimeout, &s.RequestTimeout}, {nri.RegistrationTimeout, &s.RegistrationTimeout}} {
		if d.text == "" {
			continue
		}
		if *d.into, err = time.ParseDuration(d.text); err != nil {
			return Settings{}, fmt.Errorf("read containerd's time-outs: %w", err)
		}
	}
	return s, nil
}
