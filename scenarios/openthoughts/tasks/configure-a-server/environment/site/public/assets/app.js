console.log("site")
