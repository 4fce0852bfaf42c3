// SPDX-License-Identifier: Apache-2.0

// Package version defines the release. Every binary prints the release, which is also the name of
// the libraries' directory and the tag of the image.
package version

// Base is the release of this source tree, without a leading "v". Base is a directory name and an
// image tag, so Base must match [A-Za-z0-9_][A-Za-z0-9._-]*. Base must not contain the "+" of
// semantic versions.
const Base = "0.1.0-dev"

// Version is the running release. A build may override Version by
//
//	-ldflags "-X github.com/nri-vgpu/nri-vgpu/internal/version.Version=…"
var Version = Base

// Repository is the name of the image without a tag.
const Repository = "ghcr.io/nri-vgpu/nri-vgpu"

// Image returns the name of a release's image.
func Image(version string) string { return Repository + ":" + version }

// SchedulerImage returns the name of the nri-vgpu-scheduler image of a release.
func SchedulerImage(version string) string { return Repository + "-scheduler:" + version }
