// Package version is the one place that says which release this is: every
// binary prints it, the libraries are installed in a directory of this name,
// and the image is tagged with it.
package version

// Version is the release, without a leading "v". A build overrides it by
//
//	-ldflags "-X github.com/nri-vgpu/nri-vgpu/pkg/version.Version=…"
//
// It is used as a directory name and as an image tag, so it must match
// [A-Za-z0-9_][A-Za-z0-9._-]*; a "+" of semantic versions is not allowed.
var Version = "0.1.0-dev"

// Repository is the image's name without its tag.
const Repository = "ghcr.io/nri-vgpu/nri-vgpu"

// Image is the name of this release's image.
func Image() string { return Repository + ":" + Version }
