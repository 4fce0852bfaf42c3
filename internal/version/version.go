// SPDX-License-Identifier: Apache-2.0

// Package version defines the release. Every binary prints it, the libraries
// are installed in a directory of this name, and the image is tagged with it.
package version

// Base is the release of this source tree, without a leading "v". Base is a
// directory name and an image tag, so it must match
// [A-Za-z0-9_][A-Za-z0-9._-]*. The "+" of semantic versions is not allowed.
const Base = "0.1.0-dev"

// Version is the release that runs. A build may override Version by
//
//	-ldflags "-X github.com/nri-vgpu/nri-vgpu/internal/version.Version=…"
var Version = Base

// Repository is the image's name without its tag.
const Repository = "ghcr.io/nri-vgpu/nri-vgpu"

// Image returns the name of a release's image.
func Image(version string) string { return Repository + ":" + version }

// SchedulerImage returns the name of the image of a version of nri-vgpu-scheduler.
func SchedulerImage(version string) string { return Repository + "-scheduler:" + version }
